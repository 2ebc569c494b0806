# SPDX-License-Identifier: Apache-2.0
"""The datasets the package knows; those of tables with files, addresses and terms.

The terms are as generally known; the publisher's own page decides.
"""

from armijo_reproduction.datasets import tabular
from armijo_reproduction.datasets.base import Entry
from armijo_reproduction.datasets.census import GENERATED_CENSUS
from armijo_reproduction.datasets.files import DataFile, Source
from armijo_reproduction.datasets.image_catalog import (
    CIFAR_10,
    CIFAR_10_SUBSET,
    FASHION_MNIST,
    MNIST,
)

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_UCI = "https://archive.ics.uci.edu"
_NIST = (
    "https://media.githubusercontent.com/media/usnistgov/SDNist/"
    "ac77a7f0ed1431c9daed476c55324f94a6ab264c/BenchmarkData/ACSDataExcerpts/national"
)
_IPUMS_TERMS = (
    "IPUMS allows scholarly and educational use, asks for citation, and does not allow "
    "redistribution without permission."
)
_LEE_KIFER = (
    'J. Lee and D. Kifer, "Concentrated differentially private gradient descent with '
    'adaptive per-iteration privacy budget", KDD 2018'
)
_NIST_CITATION = (
    "US Census Bureau, American Community Survey 2018 and 2019 public use microdata, "
    "as excerpted in C. Task, K. Bhagat, D. Streat, A. Simpson and G. Howarth, "
    '"NIST Diverse Communities Data Excerpts", NIST 2023, doi:10.18434/mds2-2895.'
)
_NIST_TERMS = "US government work; acknowledge NIST as the source."
_INCOME = ("at most the median", "above the median")

ADULT = Entry(
    name="adult",
    summary="Adult, binarized (LIBSVM a9a and a9a.t): income above 50K",
    files=(
        DataFile(
            name="a9a",
            folders=("adult",),
            sha256="f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
            sources=(Source(url=f"{_LIBSVM}/a9a", saved_as="a9a"),),
        ),
        DataFile(
            name="a9a.t",
            folders=("adult",),
            sha256="1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
            sources=(Source(url=f"{_LIBSVM}/a9a.t", saved_as="a9a.t"),),
        ),
    ),
    build=tabular.adult,
    classes=("-1", "1"),
    n_rows=48_842,
    n_train=32_561,
    row_shape=(tabular.ADULT_FEATURES,),
    citation=(
        'B. Becker and R. Kohavi, "Adult", UCI Machine Learning Repository 1996; '
        'R. Kohavi, "Scaling up the accuracy of naive-Bayes classifiers", KDD 1996; '
        'binarized after J. Platt (1998) by C.-C. Chang and C.-J. Lin, "LIBSVM", ACM '
        "TIST 2011."
    ),
    terms="CC BY 4.0 (UCI)",
)

BANK = Entry(
    name="bank",
    summary="Bank Marketing, encoded as by Lee and Kifer: term deposit subscribed",
    files=(
        DataFile(
            name="bank-full.csv",
            folders=("bank",),
            sha256="d1513ec63b385506f7cfce9f2c5caa9fe99e7ba4e8c3fa264b3aaf0f849ed32d",
            archives=("bank.zip", "bank+marketing.zip"),
            sources=(
                Source(
                    url=f"{_UCI}/ml/machine-learning-databases/00222/bank.zip",
                    saved_as="bank.zip",
                ),
                Source(
                    url=f"{_UCI}/static/public/222/bank+marketing.zip",
                    saved_as="bank+marketing.zip",
                ),
            ),
        ),
    ),
    build=tabular.bank,
    classes=("no", "yes"),
    n_rows=45_211,
    row_shape=(32,),
    citation=(
        'S. Moro, P. Rita and P. Cortez, "Bank Marketing", UCI Machine Learning '
        'Repository 2014; S. Moro, R. Laureano and P. Cortez, "Using data mining for '
        'bank direct marketing", ESM 2011.'
    ),
    terms="CC BY 4.0 (UCI); the authors ask for the ESM 2011 citation.",
)

IPUMS_BR = Entry(
    name="ipums-br",
    summary="Brazilian census (IPUMS International), encoded by Lee and Kifer",
    files=(
        DataFile(
            name="IPUMS-BR.dat",
            folders=("ipums-br",),
            sha256="9bcc80cf279457d62e9025d31a05c3e494e9d6edbb2097ba935eb4926a39884a",
        ),
    ),
    build=tabular.encoded_census,
    classes=("0", "1"),
    n_rows=38_000,
    row_shape=(52,),
    citation=(
        "Brazilian census microdata (IBGE), Minnesota Population Center, "
        f'"Integrated Public Use Microdata Series, International"; {_LEE_KIFER}.'
    ),
    terms=_IPUMS_TERMS,
    how_to_obtain=(
        "IPUMS-BR may not be redistributed, so it is not downloaded. Register at "
        "https://international.ipums.org, and take the encoded file IPUMS-BR.dat from "
        f"the code released with {_LEE_KIFER}. Then run `armijo datasets fetch "
        "ipums-br --file IPUMS-BR.dat`, or put it into a folder data/ipums-br."
    ),
)

IPUMS_US = Entry(
    name="ipums-us",
    summary="US census (IPUMS USA), encoded by Lee and Kifer; only from your own file",
    files=(DataFile(name="IPUMS-US.dat", folders=("ipums-us",), sha256=None),),
    build=tabular.encoded_census,
    classes=("0", "1"),
    n_rows=40_000,
    row_shape=(57,),
    citation=(
        'US census microdata, IPUMS, "Integrated Public Use Microdata Series, USA"; '
        f"{_LEE_KIFER}."
    ),
    terms=_IPUMS_TERMS,
    how_to_obtain=(
        "IPUMS-US may not be redistributed, so it is not downloaded, and no checksum "
        "of it is known. Register at https://usa.ipums.org, and ask for the encoded "
        f"file of {_LEE_KIFER}: 40,000 lines of 57 numbers and a label 0 or 1, with "
        "spaces between them. Then run `armijo datasets fetch ipums-us --file "
        "IPUMS-US.dat`, or put it into a folder data/ipums-us. The dataset "
        "acs-national is another one, from the same country."
    ),
)

_ACS_FILES = tuple(
    DataFile(
        name=f"national{year}.csv",
        folders=("acs-national", "ipums-us-substitute-acs"),
        sha256=digest,
        sources=(
            Source(url=f"{_NIST}/national{year}.csv", saved_as=f"national{year}.csv"),
        ),
    )
    for year, digest in (
        (2018, "c183f88255b95dfd5715a093b83869958c10d1fe776ea53d7e095bfc417b93f9"),
        (2019, "b49ba83e18472b6b76438bb511a01668bdbe2c1ace54521614a32edcc748f79a"),
    )
)

ACS = Entry(
    name="acs-national",
    summary="US census bureau's ACS 2018-19, NIST excerpts: income above the median",
    files=_ACS_FILES,
    build=tabular.acs,
    classes=_INCOME,
    n_rows=39_629,
    row_shape=(57,),
    citation=_NIST_CITATION,
    terms=_NIST_TERMS,
)

ACS_ONE_HOT = Entry(
    name="acs-national-one-hot",
    summary="The rows of acs-national with an indicator for every level",
    files=_ACS_FILES,
    build=tabular.acs_one_hot,
    classes=_INCOME,
    n_rows=39_629,
    row_shape=(79,),
    citation=_NIST_CITATION,
    terms=_NIST_TERMS,
)

DATASETS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        ADULT,
        BANK,
        IPUMS_BR,
        IPUMS_US,
        ACS,
        ACS_ONE_HOT,
        MNIST,
        FASHION_MNIST,
        CIFAR_10,
        CIFAR_10_SUBSET,
        GENERATED_CENSUS,
    )
}
"""Every dataset by its name."""
