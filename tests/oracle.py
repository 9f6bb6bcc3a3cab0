"""Brute-force numpy computations of what the library streams, written from the definitions and nothing else."""

import numpy as np


def pairs(query, keys, sides, *, twin_query=None, reading="plain"):
    """(q, d) of each example, as lists of slots; `keys[i]` is [key, d_head], `sides[i]` +1, -1, or +2/-2 in a twin."""
    found = []
    for i in range(len(query)):
        k, s = np.asarray(keys[i], np.float64), np.asarray(sides[i])
        q = np.asarray(query[i], np.float64)
        if reading == "plain":
            found.append([(q, k[s == 1].mean(0) - k[s == -1].mean(0))])
            continue
        ours, twins, other = k[s == 1].mean(0), k[s == 2].mean(0), np.asarray(twin_query[i], np.float64)
        if reading == "paired":
            found.append([(q, ours - twins)])
        elif reading == "symmetric":
            found.append([((q - other) / 2, ours - twins)])
        else:
            found.append([(q, ours), (other, -twins)])
    return found


def covariance(found, weight, *, centred):
    """dC = sum w q d^T / sum w, centred with the mean query of each slot."""
    w = np.asarray(weight, np.float64)
    total = 0
    for slot in range(len(found[0])):
        q, d = (np.stack([example[slot][side] for example in found]) for side in (0, 1))
        mean = (w @ q) / w.sum() if centred else 0
        total = total + ((q - mean) * w[:, None]).T @ d / w.sum()
    return total


def key_covariance(keys, weight):
    """Covariance of marked keys within their example, each example weighing its weight."""
    total = 0
    for k, w in zip(keys, weight, strict=True):
        spread = np.asarray(k, np.float64) - np.mean(k, 0, dtype=np.float64)
        total = total + w * spread.T @ spread / len(k)
    return total / np.sum(weight)


def total_covariance(keys, weight):
    """Covariance of marked keys over all examples, each example weighing its weight."""
    rows = np.concatenate([np.asarray(k, np.float64) for k in keys])
    mass = np.concatenate([np.full(len(k), w / len(k)) for k, w in zip(keys, weight, strict=True)])
    spread = rows - mass @ rows / mass.sum()
    return (spread * mass[:, None]).T @ spread / mass.sum()


def cell_scatter(keys, labels, weight):
    """Scatter of marked keys around the mean of their label cell, each key weighing w/m."""
    rows = []
    for own, cells, w in zip(keys, labels, weight, strict=True):
        rows += [(str(cell), w / len(own), vector) for vector, cell in zip(own, cells, strict=True)]
    total = 0
    for cell in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == cell]
        mass, vectors = np.array([row[1] for row in own]), np.array([row[2] for row in own], np.float64)
        spread = vectors - (mass @ vectors) / mass.sum()
        total = total + (spread * mass[:, None]).T @ spread
    return total
