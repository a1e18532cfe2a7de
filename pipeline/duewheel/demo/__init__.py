"""The demo: schedules jobs, runs them, kills processes in the middle, and then proves from the records that every promise held.

plan.py       which jobs, when each is due, which are cancelled and when
tasks.py      what the workers run; each execution first writes down that it began
course.py     what happens, in order: start, schedule, cancel, kill, replace, wait, stop, audit
evidence.py   what the topics and the handlers' own files say, and the verdict
"""
