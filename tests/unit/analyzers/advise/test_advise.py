"""Advice: legal layouts against a brute force, the choice, the path, levers; small models only."""

import re
from dataclasses import replace

import pytest

from shardtoll.analyzers.advise.advise import Beside, _loader, advise
from shardtoll.analyzers.advise.explain import layout_of
from shardtoll.analyzers.advise.layouts import legal_layouts, levers, words
from shardtoll.analyzers.advise.lever_trade import pareto
from shardtoll.analyzers.advise.question_file import count_of, question_of
from shardtoll.analyzers.forecast.compute.cards import capacity_of
from shardtoll.dashboards.advise.advice_rows import lines, sections
from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.advice import Advice, Candidate, Question, advice_to_json
from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.answers.training_plan import Layout, ModelShape
from shardtoll.ledger.words import human

SMALL = ModelShape(4, 512, 8, 8, 2048, 32000, tied=True, name="small")
BASE = Question(SMALL, 8, "h100-sxm", 1024, 64)


def test_every_legal_layout_keeps_gpus_and_batch_and_none_is_left_out() -> None:
    made = list(legal_layouts(BASE))
    assert len(set(made)) == len(made)
    for layout in made:
        assert layout.world_size == 8
        assert layout.dp * layout.micro_batch * layout.accumulation == 64
        assert layout.pp == 1 or layout.accumulation >= layout.pp
        assert SMALL.heads % layout.tp == 0
    shapes = {(x.dp, x.tp, x.pp, x.micro_batch) for x in made}
    brute = {
        (dp, tp, pp, micro)
        for dp in (1, 2, 4, 8)
        for tp in (1, 2, 4, 8)
        for pp in (1, 2, 4)
        for micro in (1, 2, 4, 8, 16, 32, 64)
        if dp * tp * pp == 8 and 64 // dp % micro == 0 and (pp == 1 or 64 // dp // micro >= pp)
    }
    assert shapes == brute


def test_experts_context_and_hybrid_shards_are_among_them() -> None:
    experts = replace(BASE, model=replace(SMALL, experts=8, topk=2))
    assert {x.ep for x in legal_layouts(experts)} == {1, 2, 4, 8}
    assert {x.cp for x in legal_layouts(BASE)} == {1}
    long = replace(BASE, sequence=32768)
    assert {x.cp for x in legal_layouts(long)} == {1, 2, 4, 8}
    nodes = replace(BASE, gpus=16)
    assert any(x.shard_size == 8 and x.sharding == "fsdp" for x in legal_layouts(nodes))


def test_words_and_simplicity() -> None:
    assert words(Layout()) == "one GPU, micro-batch 1"
    layout = Layout(
        dp=4, sharding="fsdp", tp=2, micro_batch=2, accumulation=3, checkpointing="full", shard_size=2
    )
    assert words(layout) == "HSDP 2 x 2 x TP 2, micro-batch 2 x 3, full checkpointing"
    assert levers(Layout(dp=8)) == 0 < levers(Layout(dp=8, sharding="zero1")) < levers(layout)


@pytest.fixture(scope="module")
def small_advice():  # type: ignore[no-untyped-def]
    return advise(replace(BASE, current=Layout(dp=2, pp=4, micro_batch=1, accumulation=32)))


def test_a_small_model_stays_data_parallel(small_advice) -> None:  # type: ignore[no-untyped-def]
    advice = small_advice
    assert advice.best.layout.sharding == "ddp"
    assert advice.best.layout.world_size == advice.best.layout.dp == 8
    assert advice.path[0].answer.startswith("Yes")
    assert advice.path[-1].answer == f"Yes: {advice.best.words}."
    assert advice.best.step_ns.expected <= 1.02 * advice.fastest.step_ns.expected
    assert advice.current_gap > 0
    assert "Your layout takes" in advice.headline


def test_a_family_that_the_batch_rules_out_says_so() -> None:
    few = advise(replace(BASE, gpus=16, sequences=8))
    data = next(step for step in few.path if step.question == "Is data parallel (DDP) enough?")
    assert data.number == "no layout suits batch and memory"
    assert data.answer == "No: it has none."


def test_ties_overlap_and_the_front_is_a_front(small_advice) -> None:  # type: ignore[no-untyped-def]
    advice = small_advice
    assert advice.ties[0] == advice.best
    assert all(each.step_ns.low <= advice.fastest.step_ns.high for each in advice.ties[1:])
    memory = [each.memory_bytes for each in advice.pareto]
    steps = [each.step_ns.expected for each in advice.pareto]
    assert memory == sorted(memory)
    assert steps == sorted(steps, reverse=True)
    assert pareto(advice.pareto) == advice.pareto


def test_levers_state_their_trade(small_advice) -> None:  # type: ignore[no-untyped-def]
    best = small_advice.best
    by_name = {each.name: each for each in small_advice.levers}
    assert by_name["full checkpointing"].tokens_per_s_share < 0
    assert by_name["full checkpointing"].memory_bytes < 0
    assert by_name["optimizer in host memory"].memory_bytes < 0
    for each in small_advice.levers:
        assert each.memory_bytes == each.candidate.memory_bytes - best.memory_bytes
    assert advice_to_json(small_advice)["schema_version"] == 1


def test_a_fabric_of_one_node_ends_the_scaling_there() -> None:
    advice = advise(replace(BASE, fabric="h100x8"))
    assert advice.scaling
    assert max(point.gpus for point in advice.scaling) == 8


def test_scaling_keeps_the_batch(small_advice) -> None:  # type: ignore[no-untyped-def]
    points = small_advice.scaling
    assert [each.gpus for each in points] == [1, 2, 4, 8, 16, 32]
    assert max(each.efficiency for each in points) == 1
    assert points[-1].efficiency < points[0].efficiency
    most = max(points, key=lambda each: each.tokens_per_s / each.gpus)
    assert (most.efficiency, most.slower_compute_share) == (1, 0)


def test_a_model_that_fits_nowhere_says_what_it_needs() -> None:
    large = ModelShape(80, 8192, 64, 8, 28672, 128256, gated=True)
    advice = advise(replace(BASE, model=large, gpus=2, sequences=2, sequence=8192))
    assert advice.best is None
    assert advice.headline.startswith("No layout of 2 GPUs fits in ")
    assert advice.headline.endswith(
        " It fits on 32 GPUs, as FSDP 32, micro-batch 1, full checkpointing; fewer may be enough."
    )
    assert advise(replace(BASE, model=large, gpus=32, sequences=32, sequence=8192)).best is not None
    tiny = advise(replace(BASE, model=large, gpus=2, sequences=2, sequence=8192, memory_share=0.02))
    assert tiny.headline.endswith(" Ask for larger GPUs.")
    # A job that cannot run loses no time to checkpoints.
    assert advice.failures is None


def test_fewer_gpus_may_hold_the_model_than_the_answer_names() -> None:
    large = ModelShape(80, 8192, 64, 8, 28672, 128256, gated=True)
    none = advise(replace(BASE, model=large, gpus=16, sequences=16, sequence=8192))
    named = re.search(r" It fits on ([0-9]+) GPUs, as .*; fewer may be enough\.$", none.headline)
    assert named is not None, none.headline
    fewer = advise(replace(BASE, model=large, gpus=24, sequences=24, sequence=8192))
    assert fewer.best is not None
    assert int(named[1]) > 24


def test_one_gpu_is_no_data_parallelism() -> None:
    path = advise(replace(BASE, gpus=1, sequences=8)).path
    assert [each.question for each in path] == ["Is one GPU without checkpointing enough?"]
    assert path[0].answer.startswith("Yes: one GPU, micro-batch ")


def test_one_tie_is_one_other_layout() -> None:
    shape = ModelShape(32, 4096, 32, 8, 14336, 128256, gated=True)
    advice = advise(Question(shape, 7, "h100-sxm", 8192, 128))
    assert len(advice.ties) == 2
    assert advice.headline.endswith(" The forecast cannot tell it from 1 other layout.")


def test_loaders_and_batch_are_information() -> None:
    beside = Beside(sequences_before=16, noise_scale_tokens=1e6, loader_sequences_per_s=1e9)
    advice = advise(BASE, beside=beside)
    assert advice.batch.learning_rate_factor == (2.0, 4.0)
    assert "below the measured noise scale" in advice.batch.words
    assert advice.loader is not None
    assert advice.loader.words.endswith("enough.")
    per_node = advice.best.tokens_per_s_gpu.expected * 8 / 1024
    assert advice.loader.needed_per_s == pytest.approx(per_node)
    assert advice.loader.words.startswith(f"Each node's loaders must deliver {per_node:,.0f} sequences/s")
    assert advice.loader.needed_high_per_s > per_node


@pytest.mark.parametrize(
    ("layout", "gpus", "share"),
    [
        # One node trains the whole batch, however its ranks divide the work.
        (Layout(dp=8), 8, 1),
        (Layout(dp=2, tp=4), 8, 1),
        (Layout(tp=2, cp=2, pp=2), 8, 1),
        # Both nodes hold half of the replicas.
        (Layout(dp=4, tp=4), 16, 1 / 2),
        # Ranks 0 to 7 are the first stages of all replicas.
        (Layout(dp=4, tp=2, pp=2), 16, 1),
        # A replica over two nodes: both read its sequences.
        (Layout(dp=2, tp=16), 32, 1 / 2),
    ],
)
def test_a_nodes_loaders_deliver_what_its_replicas_train_on(layout: Layout, gpus: int, share: float) -> None:
    best = advise(BASE).best
    rate = best.tokens_per_s_gpu.expected
    loader = _loader(replace(BASE, gpus=gpus), replace(best, layout=layout), Beside())
    assert loader.needed_per_s == pytest.approx(share * gpus * rate / BASE.sequence)


LARGE = Question(ModelShape(32, 4096, 32, 8, 14336, 128256, gated=True), 8, "h100-sxm", 8192, 512)


def fsdp_and_tp(micro_batch: int) -> Layout:
    return Layout(
        dp=4, tp=2, sequence_parallel=True, sharding="fsdp", micro_batch=micro_batch,
        accumulation=128 // micro_batch,
    )  # fmt: skip


def test_the_upper_band_is_the_margin_and_what_may_not_fit_is_listed_and_not_chosen() -> None:
    # Of few micro-batches the fill of a pipeline that fits counts, so that full sharding would be faster.
    few = Question(LARGE.model, 8, "h100-sxm", 8192, 64)
    advice = advise(replace(few, current=replace(fsdp_and_tp(2), accumulation=8)))
    limit = advice.capacity_bytes
    assert question_of({"model": "llama3-8b", "gpus": 8}, "advise").memory_share == LARGE.memory_share == 1
    assert all(each.memory_high_bytes <= limit for each in (*advice.ties, *advice.others))
    assert any(each.memory_high_bytes > 0.9 * limit for each in (*advice.ties, *advice.others))
    assert advice.uncertain
    for each in advice.uncertain:
        assert each.memory_bytes <= limit < each.memory_high_bytes
        assert each.fits is None
        assert each.step_ns.expected < advice.best.step_ns.expected
    assert advice.current.layout in [each.layout for each in advice.uncertain]
    assert "Your layout may not fit: up to 92.6 GB, 84.9 GB allowed." in advice.headline
    shown = {part.title: part for part in sections(advice)}
    row = shown["Faster layouts that may not fit"].rows[0]
    assert row[0] == advice.uncertain[0].words
    assert row[-1].endswith(" may not fit")
    assert {row[-1] for row in shown["What the next lever buys"].rows} == {"yes", "maybe", "no"}
    # Only the simplest of those that overlap stand with the advised one: the title of the rest says so.
    for others, said in ((advice.others, True), (slow_of(advice), False)):
        titles = [part.title for part in sections(replace(advice, others=others))]
        (title,) = (each for each in titles if each.startswith("The next fastest that fit"))
        assert title.endswith("bands of some overlap too") == said


def slow_of(advice: Advice) -> tuple[Candidate, ...]:
    """Return one layout that is slower than the fastest for sure."""
    assert advice.fastest is not None
    high = 2 * advice.fastest.step_ns.high
    return (replace(advice.others[0], step_ns=Band(high, high, high)),)


def test_a_share_of_memory_refuses_more(small_advice) -> None:  # type: ignore[no-untyped-def]
    less = advise(replace(LARGE, memory_share=0.6))
    assert less.best.memory_high_bytes <= 0.6 * less.capacity_bytes
    assert small_advice.uncertain == ()


def test_your_layout_is_judged_by_memory_first_and_by_tokens() -> None:
    large = LARGE
    full = advise(replace(large, current=fsdp_and_tp(4)))
    assert "Your layout does not fit: up to " in full.headline
    # The same layout with twice the accumulation takes twice as long a step, but no longer per token.
    best = full.best.layout
    longer = advise(replace(large, current=replace(best, accumulation=2 * best.accumulation)))
    assert abs(longer.current_gap) < 0.02
    assert longer.lost[1] < 0.02 * longer.best.step_ns.expected


@pytest.mark.parametrize(
    ("text", "tokens"), [("4M", 4_000_000), ("4Mi", 2**22), ("512k", 512_000), ("4194304", 2**22)]
)
def test_tokens_are_read_with_their_unit(text: str, tokens: int) -> None:
    assert count_of(text, "--batch-tokens") == tokens


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpus": 8}, "advise: no model"),
        ({"model": "llama9-1t", "gpus": 8}, "advise: unknown model 'llama9-1t'"),
        ({"model": "llama3-8b"}, "advise: gpus is missing"),
        ({"model": "llama3-8b", "gpus": 0}, "advise: gpus 0 is no positive whole number"),
        ({"model": "llama3-8b", "gpus": 8, "colour": 1}, "advise: unknown key 'colour'"),
        ({"model": {"layers": 1}, "gpus": 8}, "advise: [model]: missing 5 required positional arguments"),
        (
            {"model": "llama3-8b", "gpus": 8, "price_per_gpu_hour": float("nan")},
            "advise: price_per_gpu_hour nan is no price",
        ),
        (
            {"model": "llama3-8b", "gpus": 8, "price_per_gpu_hour": 0},
            "advise: price_per_gpu_hour 0 is no price",
        ),
        ({"model": "llama3-8b", "gpus": 8, "precision": "int1"}, "advise: unknown precision 'int1'"),
        ({"model": "llama3-8b", "gpus": 8, "batch_tokens": "many"}, "batch_tokens 'many' is no number of"),
        (
            {"model": "llama3-8b", "gpus": 4, "current": {"dp": 8}},
            "advise: the current layout has 8 GPUs, not 4",
        ),
    ],
)
def test_mistakes_in_a_question_are_one_line(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        question_of(values, "advise")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_unknown_gpus_and_batches_that_nothing_divides() -> None:
    with pytest.raises(UsageError, match="no GPU named 'abacus'"):
        capacity_of("abacus")
    with pytest.raises(UsageError, match="no layout of 7 GPUs divides a batch of 64 sequences"):
        advise(replace(BASE, gpus=7, model=replace(SMALL, layers=3)))


def test_a_layout_that_a_user_names() -> None:
    layout = layout_of("tp=2,sharding=fsdp,micro_batch=2", BASE)
    assert (layout.dp, layout.tp, layout.accumulation, layout.sequence_parallel) == (4, 2, 8, True)
    full = layout_of("dp=8,sharding=fsdp,checkpointing=full,shard_size=4,micro_batch=2", BASE)
    assert (full.checkpointing, full.shard_size, full.sequences) == ("full", 4, 64)
    for text, message in (
        ("tp2=1", "unknown name"),
        ("dp=4", "4 GPUs, not 8"),
        ("tp=x", "no number"),
        ("dp=0", "no number of 1 or more"),
        ("micro_batch=0", "no number of 1 or more"),
        ("micro_batch=3", "48 sequences per step, not 64"),
        ("checkpointing=much", "unknown sharding 'ddp' or checkpointing 'much'"),
    ):
        with pytest.raises(UsageError, match=message):
            layout_of(text, BASE)


def test_forecasts_are_scaled_to_the_step_that_ran(small_advice) -> None:  # type: ignore[no-untyped-def]
    was = small_advice.current
    measured = 0.5 * was.step_ns.expected
    advice = advise(replace(BASE, current=was.layout), beside=Beside(current_step_ns=measured))
    assert advice.scale == pytest.approx(0.5)
    assert advice.current.step_ns.expected == pytest.approx(measured)
    assert advice.best.layout == small_advice.best.layout
    assert advice.current_gap == pytest.approx(small_advice.current_gap)
    for now, before in ((advice.best, small_advice.best), (advice.current, was)):
        assert now.step_ns.high == pytest.approx(0.5 * before.step_ns.high)
        assert now.tokens_per_s_gpu.expected == pytest.approx(2 * before.tokens_per_s_gpu.expected)
        assert now.exposed_share == pytest.approx(before.exposed_share)
    said = next(lines(replace(advice, recorded_step_ns=measured)))
    assert said.endswith("So every forecast here is scaled by 0.5.")
    assert human.duration(was.step_ns.expected) in said


def test_a_large_factor_is_not_trusted(small_advice) -> None:  # type: ignore[no-untyped-def]
    was = small_advice.current
    for factor in (5.0, 0.2):
        step_ns = factor * was.step_ns.expected
        advice = advise(replace(BASE, current=was.layout), beside=Beside(current_step_ns=step_ns))
        assert advice.best.layout == small_advice.best.layout
        now, before = advice.best.step_ns, small_advice.best.step_ns
        assert now.expected == pytest.approx(factor * before.expected)
        assert now.high == pytest.approx(5 * factor * before.high)
        assert now.low == pytest.approx(factor * before.low / 5)
        rate = advice.best.tokens_per_s_gpu
        assert rate.low == pytest.approx(small_advice.best.tokens_per_s_gpu.low / factor / 5)
        # What ran is known as well as before.
        assert advice.current.step_ns.high == pytest.approx(factor * was.step_ns.high)
        said = list(lines(replace(advice, recorded_step_ns=step_ns)))
        assert said[1].startswith("Nothing on record explains a factor of 5, ")
    within = advise(
        replace(BASE, current=was.layout), beside=Beside(current_step_ns=1.9 * was.step_ns.expected)
    )
    assert within.best.step_ns.high == pytest.approx(1.9 * small_advice.best.step_ns.high)
    assert not any("Nothing on record" in each for each in lines(replace(within, recorded_step_ns=1.0)))


def test_another_layout_is_explained_on_the_scale_of_the_one_that_ran(small_advice) -> None:  # type: ignore[no-untyped-def]
    ran = small_advice.current
    step_ns = 1.5 * ran.step_ns.expected
    asked = replace(BASE, current=small_advice.best.layout)
    advice = advise(asked, beside=Beside(current_step_ns=step_ns, recorded=ran.layout))
    assert advice.scale == pytest.approx(1.5)
    assert advice.current.step_ns.expected == pytest.approx(1.5 * small_advice.best.step_ns.expected)
    said = next(lines(replace(advice, recorded_step_ns=1.2 * step_ns, recorded_lost_ns=0.2 * step_ns)))
    assert f"The forecast of its layout was {human.duration(ran.step_ns.expected)}: " in said
    assert f" {human.duration(0.2 * step_ns)} of it are data, checkpoints, late ranks or capture" in said


def test_a_layout_that_ran_fits_and_stands_where_nothing_else_is_sure_to() -> None:
    """One GPU, and a memory band that reaches beyond it even with full checkpointing."""
    layout = Layout(micro_batch=1, accumulation=1, checkpointing="full")
    shape = ModelShape(26, 4096, 32, 8, 14336, 32000, name="tight")
    question = Question(shape, 1, "h100-sxm", 2048, 1, current=layout)
    free = advise(question, beside=Beside(keeps_current=True))
    assert free.best is None
    assert "No layout of 1 GPU fits in " in free.headline
    kept = advise(question, beside=Beside(keeps_current=True, ran=True))
    assert kept.best.layout == layout
    assert kept.current_gap == 0
    assert kept.fastest.layout == layout
    assert "It is your layout. It ran, so it fits, though its band reaches " in kept.headline
    assert kept.path[-1].question == "Does your layout fit?"
    assert kept.path[-1].answer == f"Yes: keep {kept.best.words}."
    assert kept.best in kept.pareto
    json_of = advice_to_json(kept)
    assert json_of["best"]["fits"] is True
    assert sections(kept)
    # A run that had all of the memory does not show that less is enough.
    less = replace(question, memory_share=0.5)
    assert advise(less, beside=Beside(keeps_current=True, ran=True)).best is None


def test_nothing_slower_than_the_layout_that_stands_is_advised() -> None:
    question = replace(BASE, gpus=16, sequences=16)
    free = advise(question)
    faster = [
        each
        for each in (free.fastest, *free.ties, *free.others)
        if each.step_ns.expected < free.best.step_ns.expected
    ]
    assert faster, "a simpler layout is preferred to one that is a little faster"
    standing = replace(question, current=faster[0].layout)
    assert advise(standing).best.layout == free.best.layout
    kept = advise(standing, beside=Beside(keeps_current=True))
    assert kept.best.layout == faster[0].layout
    assert kept.headline.endswith("It is your layout.")
    assert kept.path[-1].answer.startswith("Yes: ")
    assert kept.current_gap == 0
    # A slower one is no reason to stay.
    slow = replace(question, current=Layout(dp=4, pp=4, micro_batch=1, accumulation=4))
    assert advise(slow, beside=Beside(keeps_current=True)).best.layout == free.best.layout
