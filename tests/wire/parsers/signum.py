from tests.wire.parsers import signsgd


def parse(payload, config, shape):
    return signsgd.parse(payload, config, shape)
