"""Sandbox that runs and grades Python written by a model.

    async with Sandbox() as sandbox:
        graded = await sandbox.grade(source, ["double(2)"], [4])
        async with sandbox.session(seed=0) as session:
            shown = (await session.run("6 * 7")).text

**Design.** Each worker is a bubblewrap jail: its own namespaces (processes, mounts, network, IPC, host name), no
network, an empty environment, and read-only mounts of the interpreter, its standard library, numpy, time zones and
shared libraries. Two of our processes run in it. The supervisor receives jobs, watches and reports. The forker, which
never holds a source, a call or a result, forks a fresh process for each answer. That process starts a process tree of
its own, has an empty folder in memory, drops all rights, changes to an unprivileged user where we are root, and has
limits on time, memory, processes, files and results. When it ends or exceeds its time, the kernel ends the tree and
drops the folder's content before the next answer starts. References run in jails of their own. So do sessions, whose
process runs one cell after the other. A session occupies a jail until all its processes have ended; they are stopped
between cells.

**Guarantees.** An answer's process can change itself, including our code in it, and can write anything to its channel.
So nothing in it is trusted:

* expected values, and data that depends on them, never enter an answer's jail; calls do, and an answer may read all of
  them (each test of a contest is a separate answer);
* only the host reports failures of the sandbox: an answer is confined before its first line runs, and every later
  failure counts as its own;
* no ancestor of an answer's process has ever held data of another answer or of a reference;
* results return as plain data (``inside.plain``) and are compared by value, without calling their methods;
* a reply counts only with this run's nonce, which the supervisor reads after the answer's processes have ended; bytes
  beyond the requested results fail the run;
* a result that is too large fails only its call; the answer's process, the supervisor and the host share one limit;
* nothing is left behind: files, processes, threads, timers, handlers, sockets, flags of open files, patched modules;
* time that an answer's process waits for a CPU does not count, so other load does not cause timeouts;
* all processes share one hash seed, so the order of a set of strings is the same in all;
* an answer that breaks its process fails alone; a worker without a valid reply is replaced.

**Limits.** An answer that knows expected values without computing them (from training data or from a test call) counts
as correct. A call that contains its own comparison, such as ``"f(2) == 4"``, calls methods of the answer's objects:
give the call and the value separately. The kernel is shared, so its security holes apply here. Address space limits the
memory of each process; the memory of all processes of an answer is measured every few milliseconds. Concurrent answers
can observe each other's timing and locks on shared files.
"""
