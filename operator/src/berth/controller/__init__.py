"""Which program places, starts, stops and reports? The controller: observe, plan, apply, status."""
