"""A sandbox that runs Python given by a model, and grades it.

    async with Sandbox() as sandbox:
        graded = await sandbox.grade(source, ["double(2)"], [4])
        async with sandbox.session(seed=0) as session:
            shown = (await session.run("6 * 7")).text

**How.** Each worker is a jail made by bubblewrap: namespaces of its own (processes, mounts, network, IPC, host
name), no network, an empty environment, and nothing of the machine's files but the interpreter, its standard
library, numpy, time zones and shared libraries, read-only. In it run two processes of ours. The supervisor takes
jobs, watches and reports. The forker, which never holds a source, a call or a result, forks a fresh process for each
answer; this one is the first of a process tree of its own, has an empty folder in memory, drops all rights, changes
to an unprivileged user where we are root, and has limits on time, memory, processes, files and results. When it is
done, or out of time, the kernel ends the tree and drops the folder's content, and only then is the next answer
taken. References, which say what is right, run in jails of their own. So do sessions, whose process runs one cell after
the other: a session has a jail to itself until all its processes are gone, and between its cells they stand still.

**What is guaranteed.** An answer's process can do anything to itself, also to our code in it, and can write
anything to its own channel. So nothing there is relied upon:

* expected values, and what depends on them, never enter an answer's jail; calls do, and an answer may read all of them
  (a test of a contest is an answer of its own);
* only the host says that the sandbox failed: an answer is confined before its first line runs, and what comes after is
  its own failure;
* no process that an answer's is forked from has ever held anything of another answer or of a reference;
* results come back as plain data (``inside.plain``) and are compared here, by value; no method of a
  result is ever called;
* a reply counts only with this run's nonce, which reaches the supervisor when the answer's processes are gone; bytes
  beyond the results that were asked for fail the run;
* a result that is too large fails its call alone; one limit holds in the answer's process, the supervisor and here;
* nothing is left behind: files, processes, threads, timers, handlers, sockets, flags of open files, patched modules;
* the time for which an answer's process waits for a processor does not count, so no neighbour makes it late;
* hashes are seeded alike in every process, so the order of a set of texts is the same for all;
* an answer that breaks its process fails alone; a worker that doesn't reply as it should is replaced.

**What is not.** An answer that knows expected values without computing them (since they are in its training data, or in
a test call) is a right answer. A call that holds its own verdict, such as ``"f(2) == 4"``, asks the
answer's objects whether they are equal: give the call and the value apart. The kernel is shared: a hole in it is a
hole here. Memory is limited for each process by address space, and for all of an answer's by looks every few
milliseconds. Timing, and locks on files that all can read, can be felt between answers that run at a time.
"""
