"""What Duewheel can do on this machine, measured on a real broker.

    path         the timer path of one partition, against a bare loop on the same broker (`floor`): what Duewheel costs beside Kafka
    lateness     how long after its time a job's handler starts, at a steady rate
    end_to_end   no-op jobs from intake to accepted completion
    pending      memory, disk and restore with a million jobs that are due tomorrow

Rules for all of them:

- The processes measured are those that a person would start (`fleet`): nothing of a bench runs inside them, save the tasks of `tasks`.
- What is measured is not watched while it runs. Beginnings and ends are taken from log lines, from the broker's own times of append, or
  from what a handler wrote down, and afterwards all topics are read and everything is counted. A figure whose count is wrong is an error.
- Machines are noisy, and a broker on the same cores more so. Where two things are compared they take turns, and the median of the
  rounds' ratios is the answer, not the ratio of the best. The report says which machine it was.

`site` makes a place for a run: a broker of its own, or topics under a new prefix on a cluster that was named. `report` is what comes out.
"""
