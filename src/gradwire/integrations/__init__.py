"""One framework in each file; importing gradwire imports none of them."""
