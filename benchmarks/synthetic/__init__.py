"""The parts of `benchmarks/synthetic_job.py`: jobs, traces and reports made up with known truth.

`spec` says what can be asked for, `programs` what the ranks run, `truth` what the analyses should find.
Start reading in `spec`; `report` makes a report of any size without a trace.
"""
