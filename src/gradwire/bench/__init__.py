"""What gradwire is measured with: real models, real data, and the runs that compare methods."""
