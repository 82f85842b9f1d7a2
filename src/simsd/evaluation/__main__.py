"""`python -m simsd.evaluation`: lm-evaluation-harness's own command line, which knows the model `simsd` here.

Releases of lm_eval after 0.4.13 find the model by themselves, and plain `lm_eval --model simsd` does the same.
"""

from __future__ import annotations

import sys
from importlib import import_module

from simsd.errors import SimsdError


def main() -> None:
    """Runs `lm_eval` with this process's arguments; the user's mistakes end it with one sentence and exit code 2."""
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError:
        sys.exit("simsd: lm-evaluation-harness is not installed; run: pip install 'simsd[eval]'")
    import_module("simsd.evaluation.harness")  # registers the model
    try:
        cli_evaluate()
    except SimsdError as error:
        print(f"simsd: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
