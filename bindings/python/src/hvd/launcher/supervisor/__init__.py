"""hvd.launcher.supervisor: the parent process of all processes of a job on a host, and the launcher's connection to it.

It is run by its path, with only the standard library: `python -I -S __main__.py CONTROL REPORT`, the numbers of two
pipes. On several hosts there is one for each rank: `python -I -S __main__.py rank COMMAND...`; see keep_rank in
rank.py, and spread.py for how they are started without an MPI. So all files here except client.py import nothing else of hvd, and each other by relative names.

CONTROL first carries the order, a JSON document after a line with its length, and then lines `stop SIGNAL SECONDS`.
REPORT carries lines with JSON lists, in the order of events: ["started", index], ["refused", index, errno, text],
["exited", index, code] (code as in subprocess: negative for signals), ["lost", rank, by] before the end of rank `by`,
which has lost rank `rank`, ["left", pid...] for processes that even SIGKILL does not end, and finally ["done"].
"""
