"""What several processes do together in `test_ranks.py`: shelf, studies, survey and toy on a tiny model.

python studies_worker.py FOLDER          # or under torchrun
"""

import sys
import warnings
from pathlib import Path

import qkprism as qk
import studied
from qkprism import cli
from qkprism.ranks import join
from qkprism.studies import filter as categories
from qkprism.studies import study_binding, study_filter
from test_kills import small
from test_shelf_run import WORDS as SHELF_WORDS
from test_studies import KNOWN as STUDY_WORDS
from test_study_filter import KNOWN as CATEGORY_WORDS
from test_study_filter import TINY

TEXTS = [f"{' '.join(STUDY_WORDS[i:] + STUDY_WORDS[:i])}. " * 3 for i in range(8)]


def main(folder):
    join()
    small()
    warnings.simplefilter("ignore")
    categories.SIZES["quick"] = TINY
    model = studied.load("llama3", (*SHELF_WORDS, *STUDY_WORDS, *CATEGORY_WORDS))
    qk.run_shelf(model, folder / "shelf", contrasts=["duplicate", "coreference"], n=40, progress=False)
    study_binding(model, folder / "binding", n_pairs=3, progress=False)
    study_filter(model, folder / "filter", progress=False)
    options = {"windows": 12, "length": 48, "checkpoint": folder / "survey", "progress": False}
    qk.survey(model, TEXTS, **options).save(folder / "atlas")
    sys.argv = ["qkprism", "toy", "--quick", "--save", str(folder / "toy")]
    cli.main()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
