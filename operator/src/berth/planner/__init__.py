"""What should change? Pure functions of one snapshot of the cluster; see README.md beside this file."""
