"""The engine: the only place where compressor, memory and strategy meet, and where state is kept between steps."""
