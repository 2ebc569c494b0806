# SPDX-License-Identifier: Apache-2.0
from . import accounting as accounting
from . import audit as audit
from . import baselines as baselines
from . import errors as errors
from . import estimators as estimators
from . import methods as methods
from . import networks as networks
from .accounting.accountants import PlannedAccountant as PlannedAccountant
from .accounting.accountants import PrivacyFilter as PrivacyFilter
from .accounting.accountants import PrivacyStatement as PrivacyStatement
from .accounting.budget import Budget as Budget
from .accounting.budget import Guarantee as Guarantee
from .accounting.budget import Neighboring as Neighboring
from .errors import ArmijoError as ArmijoError
from .errors import BudgetExceeded as BudgetExceeded
from .errors import ModelWarning as ModelWarning
from .errors import PrivacyLeakWarning as PrivacyLeakWarning
from .estimators import PrivateClassifier as PrivateClassifier
from .estimators import PrivateLinearSVC as PrivateLinearSVC
from .estimators import PrivateLogisticRegression as PrivateLogisticRegression
from .estimators import PrivateRegressor as PrivateRegressor
from .estimators import Solution as Solution
from .estimators import solve as solve
from .images.estimator import PrivateImageClassifier as PrivateImageClassifier
from .images.features import features as features
from .methods.base import StepRecord as StepRecord
from .methods.line_search import BLGD as BLGD
from .methods.line_search import BLSGD as BLSGD
from .methods.sgd import DPSGD as DPSGD
from .methods.sgd import DPAdam as DPAdam
from .networks.train import Trainer as Trainer
from .networks.train import blank_rows as blank_rows
from .networks.train import train as train

__version__: str
