# SPDX-License-Identifier: Apache-2.0
"""Properties are judged by what they say, not by how long a busy machine takes."""

from hypothesis import settings

settings.register_profile("without-clock", deadline=None)
settings.load_profile("without-clock")
