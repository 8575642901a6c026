import json

from gradwire_lab.experiments import models


def test_json_has_name_parameters_and_tensors(gradwire):
    rows = json.loads(gradwire("models", "--json", "-").stdout)
    assert [row["name"] for row in rows] == list(models.names())
    (vgg19,) = [row for row in rows if row["name"] == "vgg19"]
    assert (vgg19["parameters"], vgg19["tensors"], vgg19["largest"]) == (143_671_337, 38, 102_760_448)
    assert vgg19["data"] == "ImageNet"
    assert all(0 < row["small"]["parameters"] < row["parameters"] for row in rows)


def test_the_table_has_a_line_for_each(gradwire):
    lines = gradwire("models").stdout.splitlines()
    for name in models.names():
        assert sum(line.startswith(f"{name} ") for line in lines) == 1
    assert any("269,467" in line and "51" in line for line in lines)
