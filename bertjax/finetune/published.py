"""What was reached on the tasks that are known by name, in per cent of the task's first metric unless it says another.

The paper's own figures, tables 1 to 5: GLUE's test sets by its server. Its only ones of Base on GLUE's development sets
are those of the ablation (table 5); beside them stand those that Hugging Face reports (the read-me of DistilBERT), one
figure for each task.
"""

BASE_TEST, LARGE_TEST = "BERT Base, test", "BERT Large, test"
BASE_DEV, LARGE_DEV = "BERT Base, dev", "BERT Large, dev"
OTHERS_DEV = "BERT Base, dev, by Hugging Face"

PUBLISHED: dict[str, dict[str, float]] = {
    "cola": {BASE_TEST: 52.1, LARGE_TEST: 60.5, OTHERS_DEV: 56.3},
    "sst2": {BASE_TEST: 93.5, LARGE_TEST: 94.9, BASE_DEV: 92.7, OTHERS_DEV: 92.7},
    "mrpc": {BASE_TEST: 88.9, LARGE_TEST: 89.3, f"{BASE_DEV} (accuracy)": 86.7, OTHERS_DEV: 88.6},
    "stsb": {BASE_TEST: 85.8, LARGE_TEST: 86.5, OTHERS_DEV: 89.0},
    "qqp": {BASE_TEST: 71.2, LARGE_TEST: 72.1, OTHERS_DEV: 89.6},
    "mnli": {
        BASE_TEST: 84.6,
        f"{BASE_TEST} (mismatched)": 83.4,
        LARGE_TEST: 86.7,
        f"{LARGE_TEST} (mismatched)": 85.9,
        BASE_DEV: 84.4,
        OTHERS_DEV: 84.7,
    },
    "qnli": {BASE_TEST: 90.5, LARGE_TEST: 92.7, BASE_DEV: 88.4, OTHERS_DEV: 91.8},
    "rte": {BASE_TEST: 66.4, LARGE_TEST: 70.1, OTHERS_DEV: 69.3},
    "wnli": {OTHERS_DEV: 53.5},  # the paper leaves it out
    "swag": {BASE_DEV: 81.6, LARGE_DEV: 86.6, LARGE_TEST: 86.3},
    "squad": {
        BASE_DEV: 88.5,
        f"{BASE_DEV} (exact match)": 80.8,
        LARGE_DEV: 90.9,
        f"{LARGE_DEV} (exact match)": 84.1,
    },
    "squad2": {
        LARGE_DEV: 81.9,
        f"{LARGE_DEV} (exact match)": 78.7,
        LARGE_TEST: 83.1,
        f"{LARGE_TEST} (exact match)": 80.0,
    },
    "ner": {
        BASE_DEV: 96.4,
        BASE_TEST: 92.4,
        LARGE_DEV: 96.6,
        LARGE_TEST: 92.8,
        f"{BASE_DEV} (feature-based, last four layers)": 96.1,
    },
}
