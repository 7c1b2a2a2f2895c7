"""`python -m tools.docs [ROOT]`: print what the pages say that is not so."""

import sys
from pathlib import Path

from tools.docs.everything import check

if __name__ == "__main__":
    faults = check(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    print("\n".join(map(str, faults)) or "The pages say what is so.")
    sys.exit(1 if faults else 0)
