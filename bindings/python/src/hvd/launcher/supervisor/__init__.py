"""hvd.launcher.supervisor: the process that is the parent of all that a job runs on a host, and the launcher's end.

It is run by its path, with the standard library alone: `python -I -S __main__.py CONTROL REPORT`, the numbers of two
pipes, or, where mpiexec starts the ranks, one for each: `python -I -S __main__.py rank COMMAND...`; see keep_rank in
rank.py. So all files here but client.py import nothing else of hvd, and each other by relative names.

CONTROL carries first what to start, a JSON document after a line with its length, then lines `stop SIGNAL SECONDS`.
REPORT carries lines, JSON lists: ["started", index], ["refused", index, errno, text], ["exited", index, code] in the
order of the events (code as in subprocess: negative for signals), ["lost", rank, by] before the end of rank `by`, which
has lost another one, ["left", pid...] for processes that even SIGKILL does not end, and at last ["done"].
"""
