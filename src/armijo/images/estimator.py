# SPDX-License-Identifier: Apache-2.0
"""A private classifier of images: public features, then a private linear model.

Features are a fixed function of each image (:mod:`armijo.images.features`); the model
on them is trained by :mod:`armijo.methods.whitened`.  Neither needs another data set,
and nothing has to be set but the budget.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from armijo import _validate
from armijo._files import replace_file
from armijo.accounting.budget import Computed, Neighboring, as_budget
from armijo.data.feature_rows import FeatureRows, Made, held_rows
from armijo.errors import ArmijoError
from armijo.estimators.base import (
    UNKNOWN,
    as_column,
    positions,
    refuse_other_type,
    warn_of_leaks,
    whole_or_not,
)
from armijo.images.features import (
    Bank,
    FeatureMap,
    FeatureSettings,
    feature_map,
    settings_for,
)
from armijo.images.reading import Pictures
from armijo.methods.base import Problem, StepRecord, calibrated
from armijo.methods.whitened import (
    WHITENING_BITS,
    Whitened,
    centered_rows,
    whitened_rows,
)
from armijo.objectives.elementwise import elementwise_self_test
from armijo.objectives.linear import SOFTMAX, LinearObjective
from armijo.randomness import as_seed
from armijo.training.replay import machine
from armijo.training.run import Callback, Run, RunFiles

MODEL_FORMAT, MODEL_VERSION = "armijo-images", 1
NEAR = 0.05
"""How far the features of another machine may lie from those of the model's."""


class PrivateImageClassifier(ClassifierMixin, BaseEstimator):
    """Classifier of images under differential privacy, with nothing to set.

    Parameters
    ----------
    epsilon, delta : float
        The (epsilon, delta) of the guarantee of one ``fit``.
    classes : sequence or None
        The public list of classes; None reads it from the labels, which is a leak and
        warned about.  With it, an image with another label is blank.
    n_rows : int or None
        The public number of images.  None takes the number found and reports the
        zero-out relation, under which it is public by definition.
    mirror : bool or None
        Whether a mirror image has the same class; None is yes for color images and no
        for gray ones, which often are letters or digits.
    side : int or None
        Images are resized to squares of this side, at least 16; None keeps their size
        between 16 and 32.
    features : FeatureSettings or None
        Other filters, for research; it has to agree with size and channels.
    cache : path or None
        A folder that keeps features.  They are as private as the images.
    ledger : path or None
        File that remembers every charge; None keeps them in memory.
    random_state : None, int, numpy.random.Generator or numpy.random.RandomState
        None draws noise from the operating system.  Anything else is deterministic and
        voids the guarantee.
    callback : callable or None
        Receives each step record; returning True stops the run.
    progress : callable or None
        Told how many images are done, and of how many, while features are made.

    Attributes
    ----------
    classes_ : array
        The classes.
    coef_, intercept_ : arrays
        The model on whitened features.
    center_, whitening_ : arrays
        Released mean and inverse root of the second moments.
    settings_ : FeatureSettings
        What the features follow from.
    releases_ : DataFrame
        What is released by a whole run: sensitivities and shares of the budget.
    privacy_ : PrivacyStatement
        Guarantee, relation, accountant and ledger; a loaded model has
        ``privacy_statement_`` only, the same as plain values.
    history_ : DataFrame
        One row of released values for each batch.
    """

    _arrays: ClassVar[tuple[str, ...]] = ("coef_", "intercept_", "center_")
    _method: ClassVar[Whitened] = Whitened()  # research may try another one

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        classes: Sequence[Any] | None = None,
        n_rows: int | None = None,
        mirror: bool | None = None,
        side: int | None = None,
        features: FeatureSettings | None = None,
        cache: str | os.PathLike[str] | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        callback: Callback | None = None,
        progress: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.n_rows = n_rows
        self.mirror = mirror
        self.side = side
        self.features = features
        self.cache = cache
        self.ledger = ledger
        self.random_state = random_state
        self.callback = callback
        self.progress = progress

    def fit(self, X: Any, y: Any, *, readable: Any = None) -> Self:
        """Train with differential privacy.

        Parameters
        ----------
        X : array of shape (n, h, w), (n, h, w, c) or (n, c, h, w)
            Images with one or three channels: bytes, or floats in [0, 1].  One with a
            number that is not finite is blank: it adds nothing to any sum, and nothing
            tells of it.
        y : array of shape (n,)
            Labels; with declared ``classes`` an image with another one is blank.
        readable : bool array of shape (n,) or None
            Which images are not blank, beside that.

        Returns
        -------
        self
        """
        return self.fit_resumable(X, y, readable=readable)

    @whole_or_not
    def fit_resumable(
        self,
        X: Any,
        y: Any,
        *,
        readable: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
    ) -> Self:
        """Train like :meth:`fit`, with a checkpoint to go on from.

        Parameters
        ----------
        X, y, readable : arrays
            As in :meth:`fit`.
        checkpoint : path or None
            Written at the start, every few seconds and when the run ends.  The ledger
            lies beside it (its name and ``.ledger``) if the estimator names none, and
            the secret key of the run until the run has ended.
        resume : bool
            Whether to go on from the checkpoint and the ledger, with the same images.

        Returns
        -------
        self
        """
        budget = as_budget(None, epsilon=self.epsilon, delta=self.delta)
        seed = as_seed(self.random_state, name="random_state")
        _validate.function(callback=self.callback, progress=self.progress)
        _validate.path(cache=self.cache)
        pictures = Pictures(X, self.side)
        y = self._labels(y, len(pictures))
        if readable is not None:
            readable = np.asarray(readable)
            if readable.ndim != 1 or readable.dtype != bool:
                raise ValueError(
                    "Expected readable to be a vector of booleans, got an array of "
                    f"{readable.ndim} dimensions and type {readable.dtype}. Nothing "
                    "was spent."
                )
            _validate.same_length("a mark for each image", len(readable), len(y))
        declared = None if self.n_rows is None else _validate.row_count(self.n_rows)
        n_rows = len(pictures) if declared is None else declared
        method = self._method.calibrate(budget, self._problem(2, n_rows))
        noise = calibrated(noise_multiplier=method.noise_multiplier)
        settings = self._settings(pictures, n_rows / noise)
        declared_classes = None if self.classes is None else self.classes_.tolist()
        files = RunFiles(
            ledger=self.ledger,
            checkpoint=checkpoint,
            resume=resume,
            named={"features": settings.digest(), "classes": declared_classes},
        )
        warn_of_leaks(
            classes_read=self.classes is None, accounting="sound", leaky=False
        )
        if self.cache is not None:
            _refuse_unwritable(Path(self.cache))
        made = feature_map(settings, self.progress)
        assumed = (elementwise_self_test(), made.self_test())

        def rows() -> Made:
            places = positions(y, self.classes_)
            known = pictures.known() & (places != UNKNOWN)
            if readable is not None:
                known &= readable
            return self._features(made, pictures), places, known

        run = Run(
            self._problem(made.size, n_rows).linear,
            FeatureRows(rows, len(pictures), (pictures.array, y, readable)),
            self._method,
            budget,
            n_rows=n_rows,
            relation=(
                Neighboring.ZERO_OUT if declared is None else Neighboring.ADD_REMOVE
            ),
            seed=seed,
            computed=Computed(assumptions=assumed),
            files=files,
        ).complete(self.callback)
        self._keep(run, made)
        return self

    def _labels(self, y: Any, count: int) -> NDArray[Any]:
        """Return the labels, and set the classes."""
        y = as_column(y)
        _validate.same_length("a label for each image", len(y), count)
        if not count:
            raise ValueError(
                "Expected at least one image, got none. Nothing was spent."
            )
        self.classes_ = np.unique(y if self.classes is None else self.classes)
        if len(self.classes_) < 2 or (
            self.classes is not None and len(self.classes_) != len(self.classes)
        ):
            where = "the labels" if self.classes is None else "classes="
            raise ValueError(
                f"Expected at least two different classes in {where}, got "
                f"{self.classes_.tolist()}. Nothing was spent."
            )
        self.classes_ = _plain_classes(self.classes_)
        refuse_other_type(y, self.classes_)
        return y

    def _settings(self, pictures: Pictures, signal: float = 0.0) -> FeatureSettings:
        """Return what the features follow from, of public numbers only."""
        if self.features is None:
            return settings_for(pictures, self.mirror, signal)
        if not isinstance(self.features, FeatureSettings):
            raise ValueError(
                "Expected features to be FeatureSettings or None, got "
                f"{type(self.features).__name__}. Nothing was spent."
            )
        shape = {"side": pictures.side, "channels": pictures.channels}
        given = {name: getattr(self.features, name) for name in shape}
        if given != shape:
            raise ValueError(
                f"Expected features for images of {shape}, got {given}. Nothing was "
                "spent."
            )
        return self.features

    def _problem(self, n_features: int, n_rows: int) -> Problem:
        objective = LinearObjective(
            loss=SOFTMAX, n_features=n_features, n_classes=len(self.classes_), l2=0.0
        )
        return Problem(objective=objective, n_rows=n_rows)

    def _features(self, made: FeatureMap, pictures: Pictures) -> NDArray[np.int16]:
        """Return the features of images, from the cache if they are there."""
        if self.cache is None:
            return made.integers(pictures, self.progress)
        # Of one arithmetic: what a machine rounds otherwise, it does for all images.
        name = hashlib.sha256(repr((made.settings.digest(), machine())).encode())
        name.update(made.fingerprint.tobytes())
        array = pictures.array
        name.update(repr((array.shape, array.dtype.str, pictures.side)).encode())
        for image in array:
            name.update(np.ascontiguousarray(image).tobytes())
        path = Path(self.cache) / f"features-{name.hexdigest()[:32]}.npy"
        held = _whole(path)
        if held is not None and held.shape == (len(pictures), made.size):
            return held
        found = made.integers(pictures, self.progress)
        whole = io.BytesIO()
        np.save(whole, found)
        whole.write(hashlib.sha256(whole.getbuffer()).digest())
        with suppress(OSError):  # a full disk: what is paid for needs no cache
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, whole.getvalue(), mode=0o600)  # never half a file
        return found

    def _keep(self, run: Run, made: FeatureMap) -> None:
        """Store the fitted attributes."""
        state, d = run.state, made.size
        weights = state.w.numpy().reshape(len(self.classes_), -1)
        self.coef_, self.intercept_ = weights[:, :d].copy(), weights[:, d].copy()
        center, whitening = state.center, state.whitening
        self.center_ = np.zeros(d) if center is None else center.numpy().copy()
        # A run that was stopped before has a model of zeros, in any coordinates.
        self.whitening_ = np.eye(d, dtype=np.int32) << WHITENING_BITS
        if whitening is not None:
            self.whitening_ = whitening.numpy().astype(np.int32).reshape(d, d)
        self.settings_ = made.settings
        self._fingerprint = made.fingerprint
        assert isinstance(run.method, Whitened)
        self.releases_ = pd.DataFrame(run.method.releases())
        self.privacy_ = run.privacy
        self.privacy_statement_ = run.privacy.to_dict()
        names = [entry.name for entry in fields(StepRecord)]
        records = [record.to_dict() for record in run.records]
        self.history_ = pd.DataFrame(records, columns=names)
        self.n_iter_ = len(run.records)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return a score for each image and class."""
        check_is_fitted(self)
        settings = self.settings_
        pictures = Pictures(X, settings.side)
        if pictures.channels != settings.channels:
            raise ValueError(
                f"Expected images with {settings.channels} channels, as in training, "
                f"got {pictures.channels}."
            )
        blank = np.flatnonzero(~pictures.known())
        if len(blank):
            raise ValueError(
                f"Expected finite numbers, got others in image {int(blank[0])}."
            )
        made = feature_map(settings, self.progress)
        self._refuse_other_features(made)
        rows = held_rows(self._features(made, pictures), np.ones(len(pictures)))
        rows = centered_rows(rows, self.center_)
        rows = whitened_rows(rows, self.whitening_.astype(np.float64))
        return np.asarray(rows.product(self.coef_.T) + self.intercept_)

    def _refuse_other_features(self, made: FeatureMap) -> None:
        """Refuse to predict where features came out as others than in training."""
        here, there = made.fingerprint.astype(float), self._fingerprint.astype(float)
        if here.shape == there.shape:
            off = np.linalg.norm(here - there, axis=1) / np.linalg.norm(there, axis=1)
            if off.max() <= NEAR:
                return
        raise ArmijoError(
            "Expected the features that the model was trained with; this machine or "
            "this version of the libraries makes others. Predict where the model was "
            "trained, or train again."
        )

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each image."""
        return np.asarray(self.classes_[self.decision_function(X).argmax(axis=1)])

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class."""
        return np.asarray(softmax(self.decision_function(X), axis=1))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model: seeds and released numbers, safe to load from anybody."""
        check_is_fitted(self)
        document = {
            "format": MODEL_FORMAT,
            "version": MODEL_VERSION,
            "settings": asdict(self.settings_),
            "classes": self.classes_.tolist(),
            "privacy": self.privacy_statement_,
        }
        tensors = {name: getattr(self, name) for name in self._arrays}
        tensors |= {"whitening_": self.whitening_, "fingerprint": self._fingerprint}
        tensors = {name: np.ascontiguousarray(held) for name, held in tensors.items()}
        data = save_tensors(tensors, {"document": json.dumps(document)})
        replace_file(path, data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that :meth:`save` wrote."""
        data = Path(path).read_bytes()
        try:
            size = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + size])
            document = json.loads(header["__metadata__"]["document"])
            if document["format"] != MODEL_FORMAT:
                raise ValueError("another format")
            if document["version"] != MODEL_VERSION:
                raise ValueError(f"version {document['version']}")
            given = document["settings"]
            banks = tuple(Bank(**bank) for bank in given.pop("banks"))
            settings = FeatureSettings(**given, banks=banks)
            found = load_tensors(data)
            budget = {name: document["privacy"][name] for name in ("epsilon", "delta")}
            classes = document["classes"]
            model = cls(**budget, classes=classes, mirror=settings.mirror)
            model._restore(found, settings, document)
        except (ValueError, KeyError, TypeError, SafetensorError) as error:
            raise ArmijoError(
                f"{path} is no model of images that this version can read: {error}."
            ) from None
        return model

    def _restore(
        self, found: dict[str, Any], settings: FeatureSettings, document: dict[str, Any]
    ) -> None:
        classes = np.array(document["classes"])
        for name in self._arrays:
            setattr(self, name, found[name])
        self.whitening_, self._fingerprint = found["whitening_"], found["fingerprint"]
        d = len(self.center_)
        shapes = self.coef_.shape, self.intercept_.shape, self.whitening_.shape
        if shapes != ((len(classes), d), (len(classes),), (d, d)):
            raise ValueError(f"arrays of shapes {shapes}")
        if not all(np.isfinite(getattr(self, name)).all() for name in self._arrays):
            raise ValueError("numbers that are not finite")
        self.classes_, self.settings_ = classes, settings
        self.privacy_statement_ = document["privacy"]


def _plain_classes(classes: NDArray[Any]) -> NDArray[Any]:
    """Return classes of objects by the type they share, refusing what no file keeps."""
    plain = [c.item() if isinstance(c, np.generic) else c for c in classes.tolist()]
    found = np.array(plain) if classes.dtype == object else classes
    # NaN is not equal to itself.
    if found.dtype.kind in "biufU" and all(map(np.equal, found.tolist(), plain)):
        return found
    raise ValueError(
        "Expected classes of numbers, of booleans or of text, got "
        f"{classes.dtype.type.__name__}; convert them and the labels. Nothing was "
        "spent."
    )


def _refuse_unwritable(folder: Path) -> None:
    """Refuse a cache that takes no file, before anything is paid for."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"armijo")
    except OSError as error:
        raise ArmijoError(
            f"Expected a folder for cache that can be written, got {folder}: "
            f"{error.strerror}. Nothing was spent."
        ) from None


_SEAL = hashlib.sha256().digest_size


def _whole(path: Path) -> NDArray[np.int16] | None:
    """Return features that were kept; None if the file is not as it was written.

    Into memory: norms are computed once, so what is summed must not change.
    """
    try:
        data = memoryview(path.read_bytes())
    except OSError:  # not there, or not to be read
        return None
    if hashlib.sha256(data[:-_SEAL]).digest() != data[-_SEAL:]:
        return None
    found: NDArray[np.int16] = np.load(io.BytesIO(data), allow_pickle=False)
    return found if found.dtype == np.int16 else None
