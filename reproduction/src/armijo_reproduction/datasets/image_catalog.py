# SPDX-License-Identifier: Apache-2.0
"""The image datasets the package knows, and where their publishers serve them.

Every file is verified by its content, so it does not matter which address delivers it.
The terms are as generally known; the publisher's own page decides.
"""

from armijo_reproduction.datasets import images
from armijo_reproduction.datasets.base import Derivation, Entry
from armijo_reproduction.datasets.files import DataFile, Source

# The first is the authors' page, which has refused downloads for some years; the second
# and third are copies kept by the CVDF foundation and by the PyTorch project.
_MNIST = (
    "https://yann.lecun.com/exdb/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist",
)
# The bucket of the authors, and the copy in their repository.
_FASHION = (
    "https://fashion-mnist.s3.eu-central-1.amazonaws.com",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
)
# The author's page, and where the university sends its visitors on to.
_CIFAR = (
    "https://www.cs.toronto.edu/~kriz",
    "https://cave.cs.toronto.edu/kriz",
)
_CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
_CIFAR_CLASSES = tuple(
    "airplane automobile bird cat deer dog frog horse ship truck".split()
)
_CIFAR_CITATION = (
    'A. Krizhevsky, "Learning multiple layers of features from tiny images", technical '
    "report, University of Toronto 2009."
)
_CIFAR_TERMS = "No explicit license; the author asks for the citation of the report."


def _idx_files(
    folder: str, sites: tuple[str, ...], digests: dict[str, str]
) -> tuple[DataFile, ...]:
    """Return the gzipped idx files of a dataset, which all sites name alike."""
    return tuple(
        DataFile(
            name=name,
            folders=(folder,),
            sha256=digest,
            sources=tuple(
                Source(url=f"{site}/{name}.gz", saved_as=f"{name}.gz") for site in sites
            ),
        )
        for name, digest in digests.items()
    )


MNIST = Entry(
    name="mnist",
    summary="MNIST: handwritten digits, 28 x 28, 60,000 for training, 10,000 for tests",
    files=_idx_files(
        "mnist",
        _MNIST,
        {
            "train-images-idx3-ubyte": (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
            ),
            "train-labels-idx1-ubyte": (
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
            ),
            "t10k-images-idx3-ubyte": (
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
            ),
            "t10k-labels-idx1-ubyte": (
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
            ),
        },
    ),
    build=images.mnist,
    classes=tuple("0123456789"),
    n_rows=70_000,
    n_train=60_000,
    row_shape=images.MNIST_SHAPE,
    citation=(
        'Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten digits" '
        '(1998); Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-based '
        'learning applied to document recognition", Proc. IEEE 1998.'
    ),
    terms="No license came with the originals; often cited as CC BY-SA 3.0.",
)

FASHION_MNIST = Entry(
    name="fashion-mnist",
    summary="Fashion-MNIST: clothes, 28 x 28, 60,000 for training, 10,000 for tests",
    files=_idx_files(
        "fashion-mnist",
        _FASHION,
        {
            "train-images-idx3-ubyte": (
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
            ),
            "train-labels-idx1-ubyte": (
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
            ),
            "t10k-images-idx3-ubyte": (
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
            ),
            "t10k-labels-idx1-ubyte": (
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
            ),
        },
    ),
    build=images.mnist,
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    n_rows=70_000,
    n_train=60_000,
    row_shape=images.MNIST_SHAPE,
    citation=(
        'H. Xiao, K. Rasul and R. Vollgraf, "Fashion-MNIST: a novel image dataset for '
        'benchmarking machine learning algorithms", arXiv:1708.07747 (2017).'
    ),
    terms="MIT",
)

CIFAR_10 = Entry(
    name="cifar-10",
    summary="CIFAR-10: photographs, 32 x 32, 50,000 for training, 10,000 for tests",
    files=tuple(
        DataFile(
            name=name,
            folders=(
                "cifar-10",
                "cifar10",
                "cifar-10/cifar-10-batches-bin",
                "cifar-10-batches-bin",
            ),
            sha256=digest,
            archives=(_CIFAR_ARCHIVE, _CIFAR_ARCHIVE.removesuffix(".gz")),
            sources=tuple(
                Source(url=f"{site}/{_CIFAR_ARCHIVE}", saved_as=_CIFAR_ARCHIVE)
                for site in _CIFAR
            ),
        )
        for name, digest in (
            (
                "data_batch_1.bin",
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            ),
            (
                "data_batch_2.bin",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            ),
            (
                "data_batch_3.bin",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            ),
            (
                "data_batch_4.bin",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            ),
            (
                "data_batch_5.bin",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            ),
            (
                "test_batch.bin",
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
        )
    ),
    build=images.cifar,
    classes=_CIFAR_CLASSES,
    n_rows=60_000,
    n_train=50_000,
    row_shape=images.CIFAR_SHAPE,
    citation=_CIFAR_CITATION,
    terms=_CIFAR_TERMS,
)

CIFAR_10_SUBSET = Entry(
    name="cifar-10-subset",
    summary=(
        "A fifth of CIFAR-10: the first 1,000 + 200 images of every class; results "
        "do not compare with those on all of it"
    ),
    files=(
        DataFile(
            name="subset_train.bin",
            folders=("cifar-10-subset", "cifar10"),
            sha256="f66cbe5c51b5151ff1a1eddefa9c29ac36c8d7b8f37097013ac89599a2fdc8be",
        ),
        DataFile(
            name="subset_test.bin",
            folders=("cifar-10-subset", "cifar10"),
            sha256="d712dafdc2fe14d03bbb9975b357332d94966d33e98c761f84336233c80189c8",
        ),
    ),
    build=images.cifar,
    classes=_CIFAR_CLASSES,
    n_rows=12_000,
    n_train=10_000,
    row_shape=images.CIFAR_SHAPE,
    citation=f"{_CIFAR_CITATION} Of it, the first images of every class.",
    terms=_CIFAR_TERMS,
    derivation=Derivation(source="cifar-10", cut=images.cifar_subset),
)
