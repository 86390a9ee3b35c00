"""What happens on one node? Files, admission of loads, health and quiet of runners, its inventory."""
