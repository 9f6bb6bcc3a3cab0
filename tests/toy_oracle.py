"""One toy head as the paper writes it, by autograd: what the bank is compared with."""

import torch

from qkprism.toy.task import embed_payloads, embed_selector


def attention(weights, maps, samples):
    query = embed_selector(maps, samples) @ weights["query"].mT
    key = embed_payloads(maps, samples) @ weights["key"].mT
    return (torch.einsum("nd,ntd->nt", query, key) / query.shape[1] ** 0.5).softmax(-1)


def scores(weights, maps, samples):
    value = embed_payloads(maps, samples) @ weights["value"].mT
    return torch.einsum("nt,ntd->nd", attention(weights, maps, samples), value) @ weights["output"].mT


def loss_and_gradients(head, samples):
    weights = {name: getattr(head, name).clone().requires_grad_() for name in ("query", "key", "value", "output")}
    loss = torch.nn.functional.cross_entropy(scores(weights, head.maps, samples), samples.answer)
    loss.backward()
    return loss.detach(), {name: w.grad for name, w in weights.items()}
