"""Where a model is put and in which precision: what was asked for, else the best that the machine has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

import qkprism as qk
from qkprism import QKPrismError
from qkprism.cli import app
from qkprism.models import devices, loading
from qkprism.models.devices import Machine, float64_device, place
from qkprism.options import DTYPES, either
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

PLAIN, OLD_CARD, CARD = Machine(), Machine("cuda", count=2), Machine("cuda", bfloat16=True, count=2)
OLD_MAC, MAC = Machine("mps"), Machine("mps", bfloat16=True)
MACHINES = [PLAIN, OLD_CARD, CARD, OLD_MAC, MAC]


def on(device: str) -> dict[str, torch.device]:
    return {"": torch.device(device)}


@pytest.mark.parametrize(
    ("machine", "device_map", "dtype"),
    [
        (PLAIN, None, torch.float32),
        (OLD_CARD, on("cuda"), torch.float32),
        (CARD, on("cuda"), torch.bfloat16),
        (OLD_MAC, on("mps"), torch.float32),
        (MAC, on("mps"), torch.bfloat16),
    ],
)
def test_place__takes_the_best_there_is(machine: Machine, device_map: Any, dtype: torch.dtype) -> None:
    assert place(machine) == devices.Placement(device_map, dtype)


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bf16", torch.float16, "auto"], ids=str)
@pytest.mark.parametrize("where", [{}, {"device": "cpu"}, {"device_map": "auto"}, {"device_map": {"": "cpu"}}], ids=str)
def test_place__what_was_asked_for_overrules(machine: Machine, dtype: Any, where: dict[str, Any]) -> None:
    found = place(machine, dtype=dtype, **where)
    assert found.dtype == {"float32": torch.float32, "bf16": torch.bfloat16}.get(dtype, dtype)
    if where:
        assert found.device_map == where.get("device_map")


@pytest.mark.parametrize("machine", MACHINES, ids=str)
def test_place__a_device_is_the_map_of_it_alone(machine: Machine) -> None:
    for device in ("cpu", machine.accelerator or "cpu"):
        assert place(machine, device=device).dtype == place(machine, device_map={"": device}).dtype
    assert place(machine, device="cpu") == place(PLAIN)
    assert place(machine, device=machine.accelerator or "cpu") == place(machine)


@pytest.mark.parametrize(
    ("device_map", "dtype"),
    [
        ("auto", torch.bfloat16),
        ("cpu", torch.float32),
        ({"model.layers.0": 0, "model.layers.1": "cpu"}, torch.bfloat16),
        ({"model.layers.0": "cuda:1", "model.layers.1": "disk"}, torch.bfloat16),
        ({"model.layers.0": "cpu", "model.layers.1": "disk"}, torch.float32),
        ({"": "xpu"}, "auto"),
        (0, torch.bfloat16),
    ],
)
def test_place__the_dtype_of_a_map_is_that_of_its_devices(device_map: Any, dtype: Any) -> None:
    assert place(CARD, device_map=device_map).dtype == dtype


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        (PLAIN, {"device": "cuda"}, "torch sees no cuda here, only a CPU. Leave the device out, or use cpu."),
        (CARD, {"device": "mps"}, "torch sees no mps here, only cuda and a CPU. Leave the device out, or use cpu."),
        (CARD, {"device": "gpu"}, "'gpu' is not a device. Use cpu, cuda, cuda:1 or mps."),
        (CARD, {"device": 3.5}, "3.5 is not a device. Use cpu, cuda, cuda:1 or mps."),
        (CARD, {"device": "meta"}, "A model on the meta device has no weights. Use cpu, cuda, cuda:1 or mps."),
        (CARD, {"device": "cuda:2"}, "There is no cuda:2 here: cuda devices run from 0 to 1."),
        (CARD, {"dtype": "float17"}, f"'float17' is not a dtype. Use {either(DTYPES)}."),
        (CARD, {"dtype": "nn"}, f"'nn' is not a dtype. Use {either(DTYPES)}."),
        (CARD, {"dtype": torch.int8}, f"'int8' is not a dtype. Use {either(DTYPES)}."),
        (CARD, {"device": "cpu", "device_map": "auto"}, "Give device or device_map, not both."),
    ],
)
def test_place__mistakes_get_one_clear_line(machine: Machine, options: dict[str, Any], message: str) -> None:
    with pytest.raises(QKPrismError) as caught:
        place(machine, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("cuda", "mps", "new", "machine"),
    [
        (True, True, True, CARD),
        (True, False, False, OLD_CARD),
        (False, True, True, MAC),
        (False, True, False, OLD_MAC),
        (False, False, True, PLAIN),
    ],
)
def test_machine__is_what_torch_says(
    cuda: bool, mps: bool, new: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    # A card that only emulates bfloat16 says that it has it, unless asked not to count that.
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: new or including_emulation)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, _: new and major == 14)
    assert Machine.here() == machine


def test_float64_device__is_the_device_unless_it_has_none() -> None:
    assert float64_device(torch.device("mps")) == torch.device("cpu")
    for name in ("cpu", "cuda:1"):
        assert float64_device(torch.device(name)) == torch.device(name)


@pytest.mark.parametrize(
    ("options", "device_map", "dtype"),
    [
        ({}, on("cuda"), torch.bfloat16),
        ({"dtype": "float32"}, on("cuda"), torch.float32),
        ({"device": "cuda:1"}, on("cuda:1"), torch.bfloat16),
        ({"device": "cpu"}, None, torch.float32),
        ({"device_map": "auto", "dtype": "auto"}, "auto", "auto"),
    ],
)
def test_load__gives_transformers_what_was_decided(folder, monkeypatch, options, device_map, dtype) -> None:
    monkeypatch.setattr(loading.Machine, "here", lambda: CARD)
    load, seen = loading.transformers.LlamaForCausalLM.from_pretrained, {}

    def on_the_cpu(source: str, **given: Any) -> Any:
        seen.update(given)
        return load(source, **given | {"device_map": None})

    monkeypatch.setattr(loading.transformers.LlamaForCausalLM, "from_pretrained", on_the_cpu)
    model = qk.load(folder, **options)
    assert (seen["device_map"], seen["dtype"]) == (device_map, dtype)
    assert model.dtype == (torch.float32 if dtype == "auto" else dtype)


def test_load__says_what_it_chose(folder, capsys) -> None:
    model = qk.load(folder)
    said = capsys.readouterr()
    assert said.out == ""
    # the bar of transformers may stand before it
    assert said.err.endswith(f"{model.in_words()} (change with device=, dtype=)\n")
    assert f"{str(model.dtype).removeprefix('torch.')} on {model.device}" in said.err
    for options in ({"quiet": True}, {"device": "cpu", "dtype": "float32"}, {"device_map": "cpu", "dtype": "float32"}):
        qk.load(folder, **options)
        assert "change with" not in capsys.readouterr().err


def test_load__keeps_the_cap_of_the_logits(tmp_path) -> None:
    tokenizer = byte_level()
    tiny("gemma2", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "capped")
    tokenizer.save_pretrained(tmp_path / "capped")
    assert [layer.softcap for layer in qk.load(tmp_path / "capped").layers.values()] == [2.0, 2.0]


def test_cli__every_command_that_loads_a_model_takes_device_map_and_dtype(folder, tmp_path) -> None:
    commands = get_command(app).commands
    loading_ones = {name: {own.name for own in each.params} for name, each in commands.items()}
    of_tokenizers = {"check", "draw"}  # which load no model
    loading_ones = {n: options for n, options in loading_ones.items() if "model" in options and n not in of_tokenizers}
    assert {"heads", "decompose", "intervene", "attribute", "binding", "filter"} <= set(loading_ones)
    for options in loading_ones.values():
        assert {"device", "device_map", "dtype"} <= options
    texts = tmp_path / "boxes.jsonl"
    texts.write_text('{"text": "The hat is in [-O], the jam is in [+Z]. The jam is in [?Box]"}\n' * 2)
    for given in (["binding"], ["filter"], ["heads", str(texts)], ["decompose", str(texts)]):
        place_of_it = ["--save", str(tmp_path / "run")] if given[0] != "heads" else []
        both = ["--model", str(folder), "--device", "cpu", "--device-map", "auto", *place_of_it]
        result = CliRunner().invoke(app, [*given, *both])
        assert str(result.exception) == "Give device or device_map, not both."
