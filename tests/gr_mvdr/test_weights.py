import torch

from gr_mvdr.weights import weights_hash


def test_the_hash_of_the_weights_changes_with_any_of_them():
    model = torch.nn.Module()
    model.layer, model.step = torch.nn.Linear(3, 2), torch.nn.Parameter(torch.zeros(()))
    first = weights_hash(model)
    assert first == weights_hash(model)
    with torch.no_grad():
        model.layer.weight[1, 1] += 1e-3
    assert weights_hash(model) != first


class Counting(torch.nn.Module):
    count = 1

    def get_extra_state(self):
        return {"count": self.count}


def test_what_is_no_tensor_counts_too():
    model = Counting()
    first = weights_hash(model)
    model.count = 2
    assert weights_hash(model) != first
