"""Placeholder until the gradient check lands."""
from contextlib import contextmanager
_h=[]; _s=[]
def register(p,r): _h.append((p,r)); return lambda: _h.remove((p,r))
def register_sink(f): _s.append(f); return lambda: _s.remove(f)
