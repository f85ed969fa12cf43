"""The chosen products: exact or refused, the same in every process, and only where asked for."""

import json

import pytest
import torch

from gr_mvdr import products

setting = torch.backends.mkldnn.matmul


@pytest.fixture
def on_amd(monkeypatch, tmp_path):
    """A CPU whose products are measured, with a cache of its own."""
    monkeypatch.setattr(products, "_amd_processor", lambda: "a CPU")
    monkeypatch.setattr(products, "_wanted", "auto")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setenv(products.VARIABLE, "auto")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    products._measured_choice.cache_clear()
    yield tmp_path
    products._measured_choice.cache_clear()


def test_products_in_bf16_are_refused_however_fast(monkeypatch):
    monkeypatch.setattr(products, "_gain", lambda *pair: 100.0)
    monkeypatch.setattr(products, "_permitting", torch.mm)  # oneDNN on a CPU without AMX
    assert products.measure_products()["products"] == "onednn"

    def rounded(left, right):
        return (left.bfloat16().float() @ right.bfloat16().float()).float()

    monkeypatch.setattr(products, "_permitting", rounded)
    found = products.measure_products()
    assert found["products"] == "mkl" and found["error"] > 100


def test_the_first_choice_is_kept(on_amd, monkeypatch):
    answers = iter(["onednn", "mkl"])
    monkeypatch.setattr(products, "_measure_apart", lambda: {"products": next(answers)})
    assert products.chosen_products() == "onednn"
    products._measured_choice.cache_clear()  # as in another process
    assert products.chosen_products() == "onednn"
    [kept] = on_amd.glob("products/*.json")
    assert json.loads(kept.read_text())["processor"] == "a CPU"


@pytest.mark.parametrize("kept", ["", "{", "[]", "null", "{}", '{"products": "rubbish"}'])
def test_what_is_kept_and_no_choice_changes_nothing(on_amd, monkeypatch, kept):
    monkeypatch.setattr(products, "_measure_apart", lambda: {"products": "onednn"})
    assert products.chosen_products() == "onednn"
    next(on_amd.glob("products/*.json")).write_text(kept)
    products._measured_choice.cache_clear()
    assert products.chosen_products() == "mkl"


def test_nothing_is_measured_that_cannot_be_kept(on_amd, monkeypatch):
    monkeypatch.setattr(products, "_measure_apart", lambda: pytest.fail("it was measured"))
    (on_amd / "products").write_text("a file in the folder's place")
    assert products.chosen_products() == "mkl"


def test_the_setting_is_torchs_own_outside(on_amd, monkeypatch):
    monkeypatch.setattr(products, "_measure_apart", lambda: {"products": "onednn"})
    with products.fast_products("cpu"):
        with products.fast_products("cpu"):
            assert setting.fp32_precision == "bf16"
        assert setting.fp32_precision == "bf16"
    assert setting.fp32_precision == "none"
    with products.fast_products("cuda"):
        assert setting.fp32_precision == "none"
    try:
        setting.fp32_precision = "ieee"  # somebody else's choice
        with products.fast_products("cpu"):
            assert setting.fp32_precision == "ieee"
    finally:
        setting.fp32_precision = "none"


def test_a_person_can_say_no(on_amd, monkeypatch):
    monkeypatch.setattr(products, "_measure_apart", lambda: {"products": "onednn"})
    products.use_products("mkl")
    assert products.chosen_products() == "mkl"
    products.use_products("auto")
    assert products.chosen_products() == "onednn"
    monkeypatch.setenv(products.VARIABLE, "mkl")
    assert products.chosen_products() == "mkl"
    monkeypatch.setenv(products.VARIABLE, "openblas")
    with pytest.raises(ValueError, match="GR_MVDR_PRODUCTS=openblas: must be auto or mkl"):
        products.chosen_products()


def test_other_processors_are_left_alone(on_amd, monkeypatch):
    monkeypatch.setattr(products, "_amd_processor", lambda: None)
    monkeypatch.setattr(products, "_measure_apart", lambda: pytest.fail("it was measured"))
    assert products.chosen_products() == "mkl"


def test_large_products_alone_take_the_chosen_library(on_amd, monkeypatch):
    monkeypatch.setattr(products, "_measure_apart", lambda: {"products": "onednn"})
    left, right = torch.randn(3000, 128), torch.randn(128, 80)
    assert left.shape[0] * right.numel() > products._MANY
    with products.fast_products():
        expected = left @ right
    assert torch.equal(products.product(left, right), expected)
    assert torch.equal(products.product(left[:10], right), left[:10] @ right)
