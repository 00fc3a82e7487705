"""Images, labels and classes of the data sets."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from pcfed.data import (
    DataError,
    Dataset,
    available,
    catalog,
    cifar10,
    digits,
    electricity,
    load,
    mnist,
    plot_image,
    sources,
    status,
    swissmetro,
    tables,
)
from pcfed.data.verified_file import File
from tests.data import synthetic
from tests.data.source_cases import source_case


def check(dataset):
    for part in ("train", "test"):
        images, labels = getattr(dataset, f"{part}_images"), getattr(dataset, f"{part}_labels")
        assert images.dtype == labels.dtype == np.uint8
        assert images.shape == (len(labels), np.prod(dataset.image_shape))
        assert images.flags.c_contiguous
        for array in (images, labels):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


@pytest.mark.parametrize("kind", ["wheel", "unpacked wheel", "public files"])
def test_mnist_from_the_original_format(kind, monkeypatch, tmp_path):
    with source_case(kind) as case:
        monkeypatch.setattr(catalog, "MNIST", case.entry())
        dataset = mnist(cache_dir=tmp_path)
    check(dataset)
    images = np.concatenate([dataset.train_images, dataset.test_images])
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])
    np.testing.assert_array_equal(images, case.data.images)
    np.testing.assert_array_equal(labels, case.data.labels)
    assert (dataset.image_shape, dataset.scale, dataset.classes) == ((28, 28), 1 / 255, 10)
    assert len(dataset.train_labels) == synthetic.TRAIN


@pytest.mark.parametrize("kind", ["npm tarball", "public archive"])
def test_cifar_from_the_original_format_and_from_pictures(kind, monkeypatch, tmp_path):
    with source_case(kind) as case:
        monkeypatch.setattr(catalog, "CIFAR10", case.entry())
        dataset = cifar10(cache_dir=tmp_path)
    check(dataset)
    first = case.data.images[0].reshape(3, 32, 32)
    np.testing.assert_array_equal(dataset.image(0), first.transpose(1, 2, 0))
    np.testing.assert_array_equal(dataset.image(0).transpose(2, 0, 1), first)
    last = case.data.images[-1].reshape(3, 32, 32).transpose(1, 2, 0)
    np.testing.assert_array_equal(dataset.image(-1, part="test"), last)
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])
    np.testing.assert_array_equal(labels, case.data.labels)
    assert (dataset.image_shape, dataset.scale, dataset.classes) == ((32, 32, 3), 1 / 255, 10)
    assert len(dataset.test_labels) == synthetic.BATCH


def test_digits_need_no_download():
    dataset = digits()
    check(dataset)
    assert len(dataset.train_labels) + len(dataset.test_labels) == 1797
    assert (dataset.train_images.max(), dataset.scale) == (16, 1 / 16)
    again = load("digits")
    np.testing.assert_array_equal(again.train_images, dataset.train_images)
    train, test = (np.bincount(x) for x in (dataset.train_labels, dataset.test_labels))
    np.testing.assert_array_equal(test, (train + test) // 5)  # every class in the same share
    from sklearn.datasets import load_digits

    rows = {tuple(row) for row in load_digits().data.astype(int).tolist()}
    both = np.concatenate([dataset.train_images, dataset.test_images])
    assert {tuple(row) for row in both.tolist()} == rows
    assert available()[0] == "digits"


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("load_table", [swissmetro, electricity])
def test_tables_are_read_from_a_file(load_table, compressed, monkeypatch, tmp_path):
    plain = b"ID,ORIGIN,CHOICE\r\n1,2,3\r\n2,22,1\r\n"
    packed = gzip.compress(plain)

    def file(name: str, content: bytes, form: File | None = None) -> File:
        digest = hashlib.sha256(content).hexdigest()
        return File(name, len(content), f"sha256:{digest}", form)

    name = load_table.__name__
    files = (file(f"{name}.csv.gz", packed, file(f"{name}.csv", plain)),)
    entry = replace(getattr(catalog, name.upper()), files=files)
    monkeypatch.setattr(catalog, name.upper(), entry)
    path = tmp_path / (f"{name}.csv.gz" if compressed else f"{name}.csv")
    path.write_bytes(packed if compressed else plain)
    table = load_table(data_dir=tmp_path)
    assert table.names == ("ID", "ORIGIN", "CHOICE")
    assert table.numbers("ORIGIN").tolist() == [2.0, 22.0]
    assert status(name, data_dir=tmp_path).ready
    with pytest.raises(DataError, match=rf"could not fetch {name}\.csv\.gz"):
        load_table()


def test_tables_are_no_images():
    with pytest.raises(ValueError, match="load: name must be one of digits, mnist, cifar10, got"):
        load(tables()[0])


def small(**changes):
    fields = {
        "name": "small",
        "train_images": np.zeros((3, 4), np.uint8),
        "train_labels": np.array([0, 1, 1], np.uint8),
        "test_images": np.zeros((1, 4), np.uint8),
        "test_labels": np.array([0], np.uint8),
        "image_shape": (2, 2),
        "class_names": ("a", "b"),
        "scale": 1.0,
    }
    return Dataset(**fields | changes)


def test_a_dataset_is_frozen_and_owns_its_arrays():
    images = np.zeros((3, 4), np.uint8)
    dataset = small(train_images=images)
    images[:] = 7
    assert dataset.train_images.max() == 0
    check(dataset)
    with pytest.raises(FrozenInstanceError):
        dataset.scale = 2.0
    assert repr(dataset) == "Dataset('small', 3 + 1 images, shape (2, 2), 2 classes)"
    check(small(train_images=np.asfortranarray(images)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": np.zeros((3, 4))}, "train_images must be an array of uint8, got float64"),
        ({"test_labels": [0]}, "test_labels must be an array of uint8, got list"),
        ({"image_shape": (2, 3)}, r"train_images must be images × 6 .* got shape \(3, 4\)"),
        ({"train_labels": np.zeros(2, np.uint8)}, r"train_labels must be one per image, 3 of them"),
        ({"test_labels": np.array([2], np.uint8)}, r"test_labels must be in 0..1, got 2"),
        ({"scale": float("nan")}, "Dataset: scale must be a finite number, got nan"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_an_image_is_shown_in_grey_and_in_colour():
    assert plot_image(digits(), 0).axes[0].get_title() == "0"
    colour = replace(
        small(),
        image_shape=(2, 2, 3),
        train_images=np.full((3, 12), 255, np.uint8),
        test_images=np.zeros((1, 12), np.uint8),
        scale=1 / 255,
    )
    axes = plot_image(colour, 1).axes[0]
    assert axes.get_title() == "b"
    assert axes.images[0].get_array().shape == (2, 2, 3)


def test_the_progress_line_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sources.sys.stderr, "isatty", lambda: True, raising=False)
    with sources.progress_on_terminal() as report:
        report("a file", 500_000, 2_000_000)
        report("a file", 600_000, 2_000_000)  # too soon
        report("a file", 2_000_000, 2_000_000)
    lines = capsys.readouterr().err.split("\r")
    assert [line.rstrip() for line in lines[1:]] == [
        "█████░░░░░░░░░░░░░░░ 0.5 of 2.0 MB  a file",
        "████████████████████ 2.0 of 2.0 MB  a file",
    ]


def test_without_a_terminal_nothing_is_written(capsys):
    with sources.progress_on_terminal() as report:
        report("a file", 1, 2)
    assert capsys.readouterr().err == ""


def test_importing_needs_none_of_the_extras():
    code = (
        "import sys, pcfed.data; print(*{'matplotlib', 'sklearn', 'pooch', 'PIL', 'platformdirs', "
        "'requests'} & {name.split('.')[0] for name in sys.modules})"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


def test_a_missing_extra_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"sklearn is not installed; run pip install .*\[ex"):
        digits()
