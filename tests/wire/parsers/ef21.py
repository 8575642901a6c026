import importlib


def parse(payload, config, shape):
    inner = config["inner"]
    return importlib.import_module(f"tests.wire.parsers.{inner['name']}").parse(payload, inner, shape)
