import pytest
import torch
from torch import nn

from vitreous import settings
from vitreous.errors import UserError
from vitreous.models.base import Encoder
from vitreous.objectives.base import Objective
from vitreous.training.optim import AdamWSettings, MuonSettings, SGDSettings, slots


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project_in = nn.Linear(8, 24)
        self.project_out = nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(5, 4))  # relative positions: two axes, but no matrix

    def forward(self, x):
        q, k, v = self.project_in(x).chunk(3, -1)
        return self.project_out(torch.tanh(q * k) + v) + self.table.mean()


class Small(Encoder):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(8), Attention()) for _ in range(3)])
        self.conv = nn.Conv2d(1, 4, 3)
        self.conv2 = nn.Conv2d(4, 2, 3)
        self.token = nn.Parameter(torch.zeros(1, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = self.stem(x) + self.token
        for block in self.blocks:
            x = x + block(x)
        return self.norm(x) + self.conv2(self.conv(x.view(-1, 1, 8, 8))).mean()

    def stages(self):
        return [self.stem, *self.blocks, nn.ModuleList([self.conv, self.conv2])]


class Toy(Objective):
    def __init__(self):
        super().__init__()
        self.body = Small()
        self.head = nn.Linear(8, 3)
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

    @property
    def encoder(self):
        return self.body

    def forward(self, batch, progress):
        return {"loss": (self.head(self.body(batch)) ** 2).mean()}


def toy(seed=0):
    torch.manual_seed(seed)
    return Toy()


def backward(objective, seed):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    objective(x, torch.tensor(0.0))["loss"].backward()


def train(objective, optimizer, steps, bad=None):
    for step in steps:
        backward(objective, step)
        optimizer.clip(1.0)
        optimizer.step(bad)
        optimizer.zero_grad()


def weights(objective):
    return {name: p.detach().clone() for name, p in objective.named_parameters()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


ALL = [
    AdamWSettings(lr=1e-2, layer_decay=0.7),
    SGDSettings(lr=1e-1, nesterov=True, weight_decay=0.01),
    SGDSettings(lr=1e-1, momentum=0.0),
    MuonSettings(lr=1e-2, adam_lr=1e-2, layer_decay=0.7),
]


def test_slots_know_what_a_parameter_is():
    found = {slot.name: slot for slot in slots(toy(), layer_decay=0.5)}
    assert "frozen" not in found
    assert {name for name, slot in found.items() if slot.weight} == {
        "body.stem.weight",
        "head.weight",
        "body.conv.weight",
        "body.conv2.weight",
        *(f"body.blocks.{i}.1.project_{way}.weight" for i in range(3) for way in ("in", "out")),
    }
    assert not found["body.stem.weight"].inner
    assert not found["head.weight"].inner
    assert found["body.blocks.0.1.project_in.weight"].inner
    assert found["body.blocks.0.1.project_in.weight"].parts == 3
    assert found["body.blocks.0.1.project_out.weight"].parts == 1


def test_layer_decay_counts_from_the_head_down_to_the_stem():
    scale = {slot.name: slot.scale for slot in slots(toy(), layer_decay=0.5)}
    assert scale["head.weight"] == 1.0
    assert scale["body.conv.weight"] == 0.5  # the last stage
    assert scale["body.norm.weight"] == 0.5  # outside the stages: with the last
    assert scale["body.blocks.2.0.weight"] == 0.5**2
    assert scale["body.blocks.0.0.weight"] == 0.5**4
    assert scale["body.stem.weight"] == 0.5**5


def test_an_encoder_may_learn_at_a_rate_of_its_own():
    scale = {slot.name: slot.scale for slot in slots(toy(), layer_decay=0.5, encoder_rate=0.1)}
    assert scale["head.weight"] == 1.0
    assert scale["body.conv.weight"] == pytest.approx(0.05)
    lines = AdamWSettings(lr=1e-2, encoder_rate=0.1).build(toy()).describe()
    assert {line.split("rate ")[1].split(",")[0] for line in lines} == {"0.01", "0.001"}


@pytest.mark.parametrize("chosen", [AdamWSettings(lr=1e-2, weight_decay=0.3), SGDSettings(lr=1e-2, weight_decay=0.3)])
def test_equals_plain_torch(chosen):
    objective, plain = toy(), toy()
    optimizer = chosen.build(objective)
    decayed = {slot.parameter for slot in slots(plain) if slot.weight}
    trained = [p for p in plain.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p in decayed], "weight_decay": 0.3},
        {"params": [p for p in trained if p not in decayed], "weight_decay": 0.0},
    ]
    if isinstance(chosen, AdamWSettings):
        reference = torch.optim.AdamW(groups, lr=1e-2, foreach=False)
    else:
        reference = torch.optim.SGD(groups, lr=1e-2, momentum=0.9, foreach=False)
    for step in range(5):
        backward(objective, step)
        optimizer.step()
        optimizer.zero_grad()
        backward(plain, step)
        reference.step()
        reference.zero_grad()
    for (name, ours), theirs in zip(weights(objective).items(), weights(plain).values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=name)


def test_vectors_decay_only_when_asked():
    for decay_vectors in (False, True):
        objective = toy()
        optimizer = AdamWSettings(lr=0.1, weight_decay=0.5, decay_vectors=decay_vectors).build(objective)
        before = weights(objective)
        for p in objective.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        after = weights(objective)
        torch.testing.assert_close(after["head.weight"], before["head.weight"] * 0.95)
        factor = 0.95 if decay_vectors else 1.0
        torch.testing.assert_close(after["body.norm.weight"], before["body.norm.weight"] * factor)


def test_muon_splits_a_fused_query_key_and_value_if_asked():
    for split, parts in ((True, {1, 3}), (False, {1})):
        muon, _ = MuonSettings(split_qkv=split).build(toy()).parts
        assert {matrix.parts for stack in muon._stacks for matrix in stack.matrices} == parts


@pytest.mark.parametrize("chosen", ALL, ids=lambda chosen: type(chosen).__name__)
def test_rate_multiplies_every_group(chosen):
    objective = toy()
    optimizer = chosen.build(objective)
    before = weights(objective)
    optimizer.set_rate(torch.tensor(0.0))
    train(objective, optimizer, range(2))
    assert equal(before, weights(objective))
    optimizer.set_rate(torch.tensor(0.5))
    rates = [group["lr"] for part in optimizer._parts for group in part.param_groups]
    assert all(isinstance(rate, torch.Tensor) and rate.ndim == 0 for rate in rates)
    assert max(float(rate) for rate in rates) == pytest.approx(chosen.lr / 2)
    train(objective, optimizer, range(2))
    moved = weights(objective)
    assert all(not torch.equal(before[name], moved[name]) for name in before if name != "frozen")


@pytest.mark.parametrize("chosen", ALL, ids=lambda chosen: type(chosen).__name__)
@pytest.mark.parametrize("first", [0, 3])
def test_a_bad_step_changes_nothing(chosen, first):
    objective = toy()
    optimizer = chosen.build(objective)
    train(objective, optimizer, range(first))
    before, state = weights(objective), {name: value.clone() for name, value in optimizer.state().items()}
    for p in objective.parameters():
        p.grad = torch.full_like(p, float("nan"))
    assert torch.isnan(optimizer.clip(1.0))
    optimizer.step(torch.tensor(True))
    assert equal(before, weights(objective))
    assert equal(state, optimizer.state())
    optimizer.zero_grad()
    train(objective, optimizer, [5], bad=torch.tensor(False))

    untouched = toy()
    other = chosen.build(untouched)
    train(untouched, other, [*range(first), 5])
    assert equal(weights(untouched), weights(objective))


@pytest.mark.parametrize("chosen", ALL, ids=lambda chosen: type(chosen).__name__)
def test_state_round_trip_is_exact(chosen):
    straight = toy()
    optimizer = chosen.build(straight)
    train(straight, optimizer, range(3))
    state = {name: value.clone() for name, value in optimizer.state().items()}
    resumed = toy(1)
    resumed.load_state_dict(straight.state_dict())
    train(straight, optimizer, range(3, 6))
    again = chosen.build(resumed)
    again.load_state(state)
    train(resumed, again, range(3, 6))
    assert equal(weights(straight), weights(resumed))
    assert equal(optimizer.state(), again.state())


def test_state_is_there_before_the_first_step_and_has_the_parameters_names():
    state = AdamWSettings().build(toy()).state()
    assert {"head.weight/step", "head.weight/exp_avg", "head.weight/exp_avg_sq"} <= state.keys()
    assert not any(name.startswith("frozen") for name in state)


def test_foreign_state_is_refused():
    optimizer = AdamWSettings().build(toy())
    with pytest.raises(UserError, match="momentum_buffer"):
        optimizer.load_state({**optimizer.state(), "head.weight/momentum_buffer": torch.zeros(3, 8)})
    with pytest.raises(UserError, match="lacks"):
        optimizer.load_state({})
    with pytest.raises(UserError, match="shape"):
        optimizer.load_state({**optimizer.state(), "head.weight/exp_avg": torch.zeros(8, 3)})


def test_clip():
    objective = toy()
    optimizer = AdamWSettings().build(objective)
    backward(objective, 0)
    flat = torch.cat([gradient.flatten() for gradient in optimizer.gradients()])
    norm = optimizer.clip(None)
    torch.testing.assert_close(norm, flat.norm())
    torch.testing.assert_close(optimizer.clip(float(norm) / 2), norm)
    torch.testing.assert_close(optimizer.clip(1e9), norm / 2)
    torch.testing.assert_close(torch.cat([gradient.flatten() for gradient in optimizer.gradients()]), flat / 2)
    optimizer.zero_grad()
    assert float(optimizer.clip(1.0)) == 0.0


def test_muon_takes_the_matrices_and_adam_the_rest():
    for kernels in (True, False):
        state = MuonSettings(kernels=kernels).build(toy()).state()
        matrices = {name.removesuffix("/momentum") for name in state if name.endswith("/momentum")}
        blocks = {f"body.blocks.{i}.1.project_{way}.weight" for i in range(3) for way in ("in", "out")}
        assert matrices == blocks | ({"body.conv2.weight"} if kernels else set())
        others = {name.removesuffix("/exp_avg") for name in state if name.endswith("/exp_avg")}
        assert others.isdisjoint(matrices)
        assert others | matrices == {slot.name for slot in slots(toy())}


def test_muon_scales_the_rate_by_depth():
    def change(layer_decay):
        objective = toy()
        optimizer = MuonSettings(lr=1e-2, weight_decay=0.0, layer_decay=layer_decay).build(objective)
        before = weights(objective)
        train(objective, optimizer, [0])
        return {name: (value - before[name]).norm() for name, value in weights(objective).items()}

    plain, scaled = change(1.0), change(0.5)
    for index in range(3):
        name = f"body.blocks.{index}.1.project_out.weight"
        torch.testing.assert_close(scaled[name] / plain[name], torch.tensor(0.5 ** (4 - index)), rtol=1e-3, atol=0)


def test_nothing_to_train():
    objective = toy()
    objective.requires_grad_(False)
    with pytest.raises(UserError, match="frozen"):
        AdamWSettings().build(objective)


def test_descriptions_and_json():
    lines = MuonSettings().build(toy()).describe()
    assert lines[0].startswith("Muon: ")
    assert len(lines) == 3
    for chosen in ALL:
        assert settings.from_json(type(chosen), settings.to_json(chosen)) == chosen


@pytest.mark.gpu
@pytest.mark.parametrize("chosen", ALL, ids=lambda chosen: type(chosen).__name__)
def test_a_step_is_one_cuda_graph(chosen):
    def run(graphed):
        objective = toy().cuda()
        optimizer = chosen.build(objective)
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)).cuda()
        bad, multiplier = torch.zeros((), device="cuda"), torch.ones((), device="cuda")

        def step():
            optimizer.set_rate(multiplier)
            objective(x, multiplier)["loss"].backward()
            optimizer.clip(1.0)
            optimizer.step(bad)
            optimizer.zero_grad()

        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())  # the inputs are still being written
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        if graphed:
            with torch.cuda.graph(graph, stream=stream):
                step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for number in range(6):
                multiplier.fill_(1 - number / 8)
                bad.fill_(float(number == 3))
                graph.replay() if graphed else step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return weights(objective) | optimizer.state()

    plain, graphed = run(False), run(True)
    for name, value in plain.items():
        torch.testing.assert_close(value, graphed[name], rtol=1e-4, atol=1e-5, msg=name)
