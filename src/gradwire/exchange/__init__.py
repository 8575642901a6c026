"""The only place where compressor, memory and strategy meet: a step of an exchange, and what is kept between steps."""
