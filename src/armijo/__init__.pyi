# SPDX-License-Identifier: Apache-2.0
from . import audit as audit
from . import baselines as baselines
from . import errors as errors
from . import estimators as estimators
from . import methods as methods
from . import networks as networks
from . import privacy as privacy
from .errors import ArmijoError as ArmijoError
from .errors import BudgetExceeded as BudgetExceeded
from .errors import PrivacyLeakWarning as PrivacyLeakWarning
from .estimators.linear import PrivateLinearSVC as PrivateLinearSVC
from .estimators.linear import PrivateLogisticRegression as PrivateLogisticRegression
from .estimators.solve import Solution as Solution
from .estimators.solve import solve as solve
from .methods.base import StepRecord as StepRecord
from .networks.inputs import blank_rows as blank_rows
from .networks.train import Trainer as Trainer
from .networks.train import train as train
from .privacy.budget import Budget as Budget
from .privacy.budget import Guarantee as Guarantee
from .privacy.budget import Neighboring as Neighboring
from .privacy.filter import PrivacyFilter as PrivacyFilter
from .privacy.planned import PlannedAccountant as PlannedAccountant
from .privacy.statement import PrivacyStatement as PrivacyStatement

__version__: str
