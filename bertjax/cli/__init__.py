"""Floor 7: what each verb of the command line does. The verbs themselves stand in `bertjax/__main__.py`."""
