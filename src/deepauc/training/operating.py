def thresholds(task, scores):
    return {}


def calibrations(task, scores):
    return {}
