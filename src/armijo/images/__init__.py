# SPDX-License-Identifier: Apache-2.0
"""Images: public features, readers of files, and the private classifier."""
