"""A sandbox that runs Python given by a model, and grades it.

    async with Sandbox() as sandbox:
        graded = await sandbox.grade(source, ["double(2)"], [4])

**How.** Each worker is a jail made by bubblewrap: namespaces of its own (processes, mounts, network, IPC, host
name), no network, an empty environment, and nothing of the machine's files but the interpreter, its standard
library and system libraries, read-only. In it a zygote, which never runs model code, forks a fresh process for each
answer; this one is the first of a process tree of its own, has an empty folder in memory, drops all rights, changes
to an unprivileged user where we are root, and has limits on time, memory, processes, files and output. When it is
done, or out of time, the kernel ends the tree and drops the folder's content, and only then is the next answer
taken.

**What is guaranteed.** An answer's process can do anything to itself, also to our code in it, and can write
anything to its own channel. So nothing there is relied upon:

* expected values never enter the jail; calls do, and an answer may read all of them;
* results come back as plain data (``inside.plain``) and are compared here, by type and value; no method of a
  result is ever called;
* a reply counts only with this run's nonce, which reaches the zygote when the answer's processes are gone; bytes
  beyond the results that were asked for fail the run;
* nothing is left behind: files, processes, threads, timers, handlers, patched modules;
* an answer that breaks its process fails alone; a worker that doesn't reply as it should is replaced.

**What is not.** An answer that knows expected values without computing them (since they are in its training data, or in
a test call) is a right answer. A call that holds its own verdict, such as ``"f(2) == 4"``, asks the
answer's objects whether they are equal: give the call and the value apart. The kernel is shared: a hole in it is a
hole here. Memory is limited for each process by address space, and for all of an answer's by looks every few
milliseconds. Timing can be felt between workers.
"""
