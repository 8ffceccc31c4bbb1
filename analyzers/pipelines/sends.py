"""The messages of pipelines, each once, with the way that it goes."""

from __future__ import annotations

import numpy as np
import pandas as pd

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.pipelines.stage_messages import messages
from shardtoll.analyzers.shared.memo import once
from shardtoll.analyzers.shared.tally import keep


@once
def sends(context: Context) -> pd.DataFrame:
    """Return the messages by their sends: step, sender, receiver, start_ns, and whether they go backward.

    `backward` is unknown if the phase is. If no send between two ranks was seen, receives stand for the
    messages. A send knows better which way it goes, as it follows the compute that made it.
    """
    frame = messages(context)
    backward = frame["phase"].map({"forward": False, "backward": True}).astype("boolean")
    frame = frame.assign(backward=backward)
    sent = (frame["op"] == "send").to_numpy(dtype=bool)
    outgoing = keep(frame, sent).rename(columns={"rank": "sender", "root": "receiver"})
    incoming = keep(frame, ~sent).rename(columns={"rank": "receiver", "root": "sender"})
    lanes = set(zip(outgoing["sender"], outgoing["receiver"], strict=True))
    unseen = [lane not in lanes for lane in zip(incoming["sender"], incoming["receiver"], strict=True)]
    columns = ["step", "sender", "receiver", "start_ns", "backward"]
    parts = [outgoing[columns], keep(incoming, np.array(unseen, dtype=bool))[columns]]
    both: pd.DataFrame = pd.concat([part for part in parts if len(part)] or parts[:1])
    return both
