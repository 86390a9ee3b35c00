"""What would the planner do with these requests on this fleet? Its real code, on a clock of its own."""
