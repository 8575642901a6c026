"""Methods that send the elements beyond a threshold that is fitted, given or drawn, or a random choice."""
