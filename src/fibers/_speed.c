/* The run loop's hot paths in C: what fibers.loop says in Python, for the cases that are common.
 *
 * Built on request only (see docs/development/native.md); without it the package is pure Python and behaves the
 * same. The rules of this file:
 *
 * - One meaning, two speeds. A function here has a twin in Python and takes the cases that need no
 *   thought; for anything else (regions, closed scopes, failures, interrupts) it calls the twin.
 * - State lives in C structs whose members Python sees under the names of the pure slots, so the
 *   rest of the package reads and writes it as ever.
 * - References that Python code may drop while a call is under way are held for that call.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "written for Python 3.11 to 3.13: asyncio keeps the current task elsewhere in others"
#endif

#define OP_BUDGET_PRIMITIVES 2048 /* loop/states.py, which setup() compares */
#define SHALLOW_CALLS 8
#define ROOM_CALLS 40
#define MORE_ROOM_CALLS 256

enum { NEW, READY, RUNNING, SUSPENDED, ENDED };
enum { CHILD, DETACHED, IN_SCOPE };

/* What the Python side hands over in setup(); strong, for the life of the process. */
#define FOREIGN(X)                                                                       \
    X(NEXT) X(FAIL) X(SUSPEND) X(SWITCH) X(DONE) X(Node) X(InnerTask) X(JoinWait)        \
    X(Fork) X(Body) X(Succeed) X(Scope) X(EMPTY) X(NOTHING_RARE) X(NOTHING_TOLD)         \
    X(current_tasks) X(this_thread) X(task_set) X(Future) X(Task)                        \
    X(slow_future_done) X(slow_await) X(wait_for) X(monotonic) X(slow_interrupt) X(slow_throw) X(enter_body)   \
    X(slow_new_fiber) X(RootFiber) X(DEFAULT_ENV) X(slow_exit_made) X(Success) X(inner_value)                \
    X(running_loop) X(Fiber) X(Interrupt) X(Cause) X(CancelledError) X(Caught) X(Declares)
#define DECLARE(name) static PyObject *s_##name;
FOREIGN(DECLARE)

#define NAMES(X)                                                                         \
    X(_ev) X(_val) X(_err) X(_attend) X(_end) X(_throw_into) X(_left) X(_raised) \
    X(_overflowed) X(_await_future) X(_future_done) X(_tell_observers) X(_part) \
    X(_drop) X(_entries) X(_exit) X(_arm) X(append) X(popleft) X(task) X(let_go)         \
    X(closing) X(add_done_callback) X(context) X(get_loop) X(_asyncio_future_blocking)   \
    X(_await_outside) X(_await_breather) X(data) X(_remove) X(_pending_removals)         \
    X(_commit_removals) X(reasons) X(by) X(reason) X(asked) X(_abandon) X(remove_done_callback) \
    X(cancel) X(done) X(throw) X(_mark) X(_unwind) X(_yield_turn) X(_register) X(__fiber_interrupt__) \
    X(__fibers_queue__) X(site) X(mask)
#define DECLARE_NAME(name) static PyObject *n_##name;
NAMES(DECLARE_NAME)
static PyObject *kw_context; /* ("context",) */

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *loop, *ready, *turn, *live, *fatal, *on_fatal, *context;
    int depth, gifts;
    long long steps;
    char armed, manual;
} Queue;

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *queue, *ctx, *env, *code, *rv, *next, *wait, *icause, *cause, *cont;
    PyObject *only, *stack; /* one frame alone, which is most; else all of them in a list */
    PyObject *switch_to, *face, *result, *exit, *observers, *children, *owner, *rare, *thrown;
    long long id;
    int mask, base_mask, stale, delivered, offset;
    char state, pend, attn, ok, registered, seen;
} Fiber;

typedef struct {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *fiber, *told;
    int depth;
} Inner;

typedef struct {
    PyObject_HEAD
    PyObject *f, *args, *kwargs, *declares;
} Body;

typedef struct {
    PyObject_HEAD
    PyObject *first, *owner, *masked, *code;
    int mode, offset;
    char immediate;
} Fork;

typedef struct {
    PyObject_HEAD
    PyObject *target, *fiber;
    char as_exit;
} Join;

typedef struct {
    PyObject_HEAD
    PyObject *value;
} Value;

/* One await: gives the node (or nothing, where the value is known), then what it is sent. */
typedef struct {
    PyObject_HEAD
    PyObject *node, *value;
} Await;

static PyTypeObject Queue_Type, Fiber_Type, Inner_Type, Body_Type, Fork_Type, Join_Type,
    Value_Type, Effect_Type, Await_Type;

/* Primitives in one step; testing.sweep makes it few. */
static int op_budget = OP_BUDGET_PRIMITIVES;

/* The fiber whose step runs in this thread, innermost; borrowed from the C frame that runs it. */
static _Thread_local Fiber *running;

static long long last_id = 0;

#define IS_NONE(o) ((o) == NULL || (o) == Py_None)
#define IS_INNER(o) ((o) != NULL && PyObject_TypeCheck((o), &Inner_Type))
/* A subclass of Fiber may have its own idea of a suspension or an end: it is asked by name. */
#define IS_PLAIN(fiber) Py_IS_TYPE((fiber), (PyTypeObject *)s_Fiber)
#define IS_FIBER(o) PyObject_TypeCheck((o), &Fiber_Type)

static inline PyObject *
signal(PyObject *which)
{
    return Py_NewRef(which);
}

static inline void
put(PyObject **slot, PyObject *value) /* takes the reference */
{
    PyObject *old = *slot;
    *slot = value;
    Py_XDECREF(old);
}

static PyObject *
raised_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *exc, *tb;
    PyErr_Fetch(&type, &exc, &tb);
    PyErr_NormalizeException(&type, &exc, &tb);
    if (tb != NULL) {
        PyException_SetTraceback(exc, tb);
        Py_DECREF(tb);
    }
    Py_DECREF(type);
    return exc;
#endif
}

/* ------------------------------------------------------------------ the queue */

/* Into one of the queue's two lines, `ready` or `turn`. */
static int
line_up(PyObject *line, PyObject *fiber)
{
    PyObject *none = PyObject_CallMethodOneArg(line, n_append, fiber);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

/* The loop is asked to drain them. */
static int
wake_loop(Queue *queue)
{
    if (queue->armed)
        return 0;
    PyObject *none = PyObject_CallMethodNoArgs((PyObject *)queue, n__arm);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

static int
push(Queue *queue, PyObject *fiber)
{
    return line_up(queue->ready, fiber) < 0 ? -1 : wake_loop(queue);
}

/* ------------------------------------------------------------------ the current task */

static int
put_current(PyObject *loop, PyObject *face)
{
    if (IS_NONE(loop))
        return PyObject_SetAttr(s_this_thread, n_task, face == NULL ? Py_None : face);
    if (face == NULL) {
        if (PyDict_DelItem(s_current_tasks, loop) < 0)
            PyErr_Clear();
        return 0;
    }
    return PyDict_SetItem(s_current_tasks, loop, face);
}

/* A new reference, or NULL for none. */
static PyObject *
get_current(PyObject *loop)
{
    PyObject *found;
    if (IS_NONE(loop)) {
        found = PyObject_GetAttr(s_this_thread, n_task);
        if (found == Py_None) {
            Py_DECREF(found);
            return NULL;
        }
        return found;
    }
    found = PyDict_GetItemWithError(s_current_tasks, loop);
    return Py_XNewRef(found);
}

/* Does ``loop`` run the code that runs now? None: no loop does. What run_sync calls without a loop
 * may run one of its own, and what that runs is in no fiber. Less than 0 with an exception. */
static int
is_running_loop(PyObject *loop)
{
    if (!IS_NONE(loop))
        return 1; /* one loop a thread, and a fiber's step is a callback of it */
    PyObject *found = PyObject_CallNoArgs(s_running_loop);
    Py_XDECREF(found);
    return found == NULL ? -1 : found == Py_None;
}

/* The fiber whose code runs now. Not where a task runs inside of its step (3.12's eager ones).
 * NULL for none, also with an exception. */
static Fiber *
inside(void)
{
    Fiber *fiber = running;
    if (fiber == NULL || fiber->face == NULL)
        return NULL;
    PyObject *loop = ((Queue *)fiber->queue)->loop;
    if (is_running_loop(loop) <= 0)
        return NULL;
    if (!IS_NONE(loop) && PyDict_GetItemWithError(s_current_tasks, loop) != fiber->face)
        return NULL;
    return fiber;
}

/* hooks.task_of_step. */
static PyObject *
task_of_step(PyObject *module, PyObject *unused)
{
    if (running == NULL)
        Py_RETURN_NONE;
    PyObject *loop = ((Queue *)running->queue)->loop;
    int here = is_running_loop(loop);
    if (here <= 0)
        return here < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *found = get_current(loop);
    return found == NULL ? Py_NewRef(Py_None) : found;
}

/* ------------------------------------------------------------------ making a fiber */

/* Where a fork stands, (code, offset) or None; kept without the tuple. */
static int
read_site(PyObject *site, PyObject **code, int *offset)
{
    PyObject *where = NULL;
    if (PyTuple_CheckExact(site) && PyTuple_GET_SIZE(site) == 2) {
        where = PyTuple_GET_ITEM(site, 0);
        *offset = (int)PyLong_AsLong(PyTuple_GET_ITEM(site, 1));
        if (*offset == -1 && PyErr_Occurred())
            return -1;
    }
    put(code, Py_XNewRef(where));
    return 0;
}

static PyObject *
make_site(PyObject *code, int offset)
{
    return code == NULL ? Py_NewRef(Py_None) : Py_BuildValue("(Oi)", code, offset);
}

static int
fill_fiber(Fiber *self, PyObject *queue, PyObject *effect, PyObject *ctx, PyObject *env, int mask)
{
    if (!PyObject_TypeCheck(queue, &Queue_Type)) {
        PyErr_SetString(PyExc_TypeError, "a fiber needs a ReadyQueue");
        return -1;
    }
    PyTypeObject *kind = (PyTypeObject *)s_InnerTask;
    Inner *face = (Inner *)kind->tp_alloc(kind, 0);
    if (face == NULL)
        return -1;
    face->fiber = Py_NewRef(self);
    face->told = Py_NewRef(s_NOTHING_TOLD);
    face->depth = mask;
    put(&self->face, (PyObject *)face);
    self->id = ++last_id;
    put(&self->queue, Py_NewRef(queue));
    put(&self->next, Py_NewRef(effect));
    put(&self->ctx, Py_NewRef(ctx));
    put(&self->env, Py_NewRef(env));
    put(&self->rv, Py_NewRef(s_NEXT));
    put(&self->rare, Py_NewRef(s_NOTHING_RARE));
    self->mask = self->base_mask = mask;
    self->state = NEW;
    return 0;
}

static int
Fiber_init(Fiber *self, PyObject *args, PyObject *kwargs)
{
    PyObject *queue, *effect, *ctx, *env, *site;
    int mask;
    if (!PyArg_ParseTuple(args, "OOOOiO:Fiber", &queue, &effect, &ctx, &env, &mask, &site))
        return -1;
    if (read_site(site, &self->code, &self->offset) < 0)
        return -1;
    return fill_fiber(self, queue, effect, ctx, env, mask);
}

static Fiber *
spawn(Fiber *parent, PyObject *effect, int mask, PyObject *code, int offset)
{
    PyTypeObject *kind = Py_TYPE(parent);
    PyObject *ctx = PyContext_CopyCurrent();
    if (ctx == NULL)
        return NULL;
    Fiber *child = (Fiber *)kind->tp_alloc(kind, 0);
    if (child != NULL) {
        child->code = Py_XNewRef(code);
        child->offset = offset;
        if (fill_fiber(child, parent->queue, effect, ctx, parent->env, mask) < 0)
            Py_CLEAR(child);
    }
    Py_DECREF(ctx);
    return child;
}

/* The queue of the loop that runs; NULL, also without an exception, where that is not made yet. */
static PyObject *
queue_of_running_loop(void)
{
    PyObject *loop = PyObject_CallNoArgs(s_running_loop);
    PyObject *queue = NULL;
    if (loop != NULL && loop != Py_None) {
        queue = PyObject_GetAttr(loop, n___fibers_queue__);
        if (queue == NULL)
            PyErr_Clear();
    }
    Py_XDECREF(loop);
    return queue;
}

/* root.new_fiber for the calls that edges make: an effect, its site, perhaps a mask. */
static PyObject *
new_fiber(PyObject *module, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    PyObject *site = NULL, *queue = NULL, *env = s_DEFAULT_ENV;
    long mask = 0;
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (n != 1 || s_RootFiber != s_Fiber)
        goto twin;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        if (name == n_site)
            site = args[n + i];
        else if (name == n_mask && PyLong_CheckExact(args[n + i]))
            mask = PyLong_AsLong(args[n + i]);
        else
            goto twin;
    }
    if (site == NULL || mask < 0 || mask > 1)
        goto twin;
    if (running != NULL) {
        Fiber *caller = inside();
        if (caller == NULL || IS_NONE(caller->env))
            goto twin;
        queue = Py_NewRef(caller->queue);
        env = caller->env;
    }
    else
        queue = queue_of_running_loop();
    if (queue == NULL)
        goto twin;
    PyTypeObject *kind = (PyTypeObject *)s_Fiber;
    PyObject *ctx = PyContext_CopyCurrent();
    Fiber *made = ctx == NULL ? NULL : (Fiber *)kind->tp_alloc(kind, 0);
    if (made != NULL && (read_site(site, &made->code, &made->offset) < 0 ||
                         fill_fiber(made, queue, args[0], ctx, env, (int)mask) < 0))
        Py_CLEAR(made);
    Py_XDECREF(ctx);
    Py_DECREF(queue);
    return (PyObject *)made;
twin:
    if (PyErr_Occurred())
        return NULL;
    return PyObject_Vectorcall(s_slow_new_fiber, args, n, names);
}

/* ------------------------------------------------------------------ suspending and waking */

/* asyncio's set of tasks, filled as WeakSet.add and discard do, without their frames. */
static int
commit_removals(void)
{
    PyObject *pending = PyObject_GetAttr(s_task_set, n__pending_removals);
    if (pending == NULL)
        return -1;
    int some = PyObject_IsTrue(pending);
    Py_DECREF(pending);
    if (some > 0) {
        PyObject *none = PyObject_CallMethodNoArgs(s_task_set, n__commit_removals);
        if (none == NULL)
            return -1;
        Py_DECREF(none);
    }
    return some < 0 ? -1 : 0;
}

static int
note_task(Fiber *self, int here)
{
    if (commit_removals() < 0)
        return -1;
    PyObject *data = PyObject_GetAttr(s_task_set, n_data);
    if (data == NULL)
        return -1;
    PyObject *remove = here ? PyObject_GetAttr(s_task_set, n__remove) : NULL;
    int done = -1;
    PyObject *ref = here && remove == NULL ? NULL : PyWeakref_NewRef((PyObject *)self, remove);
    if (ref != NULL) {
        done = here ? PySet_Add(data, ref) : PySet_Discard(data, ref);
        Py_DECREF(ref);
    }
    Py_XDECREF(remove);
    Py_DECREF(data);
    return done < 0 ? -1 : 0;
}

static int
enroll(Fiber *self)
{
    Queue *queue = (Queue *)self->queue;
    self->registered = 1;
    PyObject *since = PyObject_CallNoArgs(s_monotonic); /* for the dump */
    if (since == NULL || PyDict_SetItem(queue->live, (PyObject *)self, since) < 0) {
        Py_XDECREF(since);
        return -1;
    }
    Py_DECREF(since);
    return IS_NONE(queue->loop) ? 0 : note_task(self, 1);
}

static int
enroll_first(Fiber *self)
{
    if (self->registered)
        return 0;
    if (IS_PLAIN(self))
        return enroll(self);
    PyObject *none = PyObject_CallMethodNoArgs((PyObject *)self, n__register);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

static PyObject *
suspend(Fiber *self, PyObject *wait)
{
    put(&self->wait, Py_NewRef(wait));
    self->state = SUSPENDED;
    if (enroll_first(self) < 0)
        return NULL;
    if (self->rare != s_NOTHING_RARE) {
        PyObject *closing = PyObject_GetAttr(self->rare, n_closing);
        if (closing == NULL)
            return NULL;
        if (closing != Py_None) {
            Py_ssize_t n = PyTuple_GET_SIZE(closing);
            for (Py_ssize_t i = 0; i < n; i++) {
                PyObject *none = PyObject_CallMethodOneArg(PyTuple_GET_ITEM(closing, i), n_let_go,
                                                           (PyObject *)self);
                if (none == NULL) {
                    Py_DECREF(closing);
                    return NULL;
                }
                Py_DECREF(none);
            }
        }
        Py_DECREF(closing);
    }
    return signal(s_SUSPEND);
}

static PyObject *
yield_turn(Fiber *self)
{
    Queue *queue = (Queue *)self->queue;
    if (enroll_first(self) < 0 || line_up(queue->turn, (PyObject *)self) < 0)
        return NULL;
    self->state = READY; /* not earlier: see _stay */
    return wake_loop(queue) < 0 ? NULL : signal(s_SUSPEND);
}

static int
wake(Fiber *self, PyObject *value)
{
    put(&self->wait, NULL);
    put(&self->rv, Py_NewRef(value));
    self->state = READY;
    return push((Queue *)self->queue, (PyObject *)self);
}

/* ------------------------------------------------------------------ ending */

/* A cause of one interrupt: no failure, and nothing of asyncio's own in it. */
static int
is_one_interrupt(PyObject *cause)
{
    PyObject *reasons = PyObject_GetAttr(cause, n_reasons);
    if (reasons == NULL) {
        PyErr_Clear();
        return 0;
    }
    int yes = PyTuple_GET_SIZE(reasons) == 1 &&
              Py_IS_TYPE(PyTuple_GET_ITEM(reasons, 0), (PyTypeObject *)s_Interrupt);
    Py_DECREF(reasons);
    return yes;
}

static int
drop_from_owner(PyObject *owner, Fiber *child)
{
    PyObject *home = NULL;
    if (IS_FIBER(owner))
        home = Py_XNewRef(((Fiber *)owner)->children);
    else if (Py_IS_TYPE(owner, (PyTypeObject *)s_Scope)) {
        home = PyObject_GetAttr(owner, n__entries);
        if (home == NULL)
            return -1;
    }
    else {
        PyObject *none = PyObject_CallMethodOneArg(owner, n__drop, (PyObject *)child);
        Py_XDECREF(none);
        return none == NULL ? -1 : 0;
    }
    if (!IS_NONE(home) && PyDict_Contains(home, (PyObject *)child) > 0)
        (void)PyDict_DelItem(home, (PyObject *)child);
    Py_XDECREF(home);
    return PyErr_Occurred() ? -1 : 0;
}

/* FiberCore._end for a success, or the fiber's own interrupt and nothing else, without children. */
static PyObject *
end(Fiber *self, int ok, PyObject *value)
{
    Queue *queue = (Queue *)self->queue;
    if (!IS_PLAIN(self) || !IS_INNER(self->face) || self->rare != s_NOTHING_RARE ||
        (!ok && !is_one_interrupt(value)) ||
        (!IS_NONE(self->children) && PyDict_GET_SIZE(self->children)))
        return PyObject_CallMethodObjArgs((PyObject *)self, n__end, ok ? Py_True : Py_False, value,
                                          NULL);
    self->ok = ok;
    put(&self->result, Py_NewRef(value));
    self->state = ENDED;
    if (self->registered) {
        if (PyDict_Contains(queue->live, (PyObject *)self) > 0 &&
            PyDict_DelItem(queue->live, (PyObject *)self) < 0)
            return NULL;
        if (!IS_NONE(queue->loop) && note_task(self, 0) < 0)
            return NULL;
    }
    /* Held by this fiber and by the table of current tasks: nobody outside has it. */
    if (Py_REFCNT(self->face) > 2) {
        PyObject *none = PyObject_CallMethodOneArg(self->face, n__part, (PyObject *)self);
        if (none == NULL)
            return NULL;
        Py_DECREF(none);
    }
    else {
        Py_CLEAR(((Inner *)self->face)->fiber);
    }
    Py_CLEAR(self->face);
    Py_CLEAR(self->only);
    Py_CLEAR(self->stack);
    Py_CLEAR(self->ctx);
    Py_CLEAR(self->env);
    Py_CLEAR(self->next);
    put(&self->cause, Py_NewRef(s_EMPTY));
    PyObject *owner = self->owner;
    self->owner = NULL;
    if (!IS_NONE(owner) && drop_from_owner(owner, self) < 0) {
        Py_DECREF(owner);
        return NULL;
    }
    Py_XDECREF(owner);
    if (!IS_NONE(self->observers)) {
        PyObject *observers = self->observers;
        Join *join = NULL;
        if (PyList_GET_SIZE(observers) == 1)
            join = (Join *)PyList_GET_ITEM(observers, 0);
        if (ok && join != NULL && Py_IS_TYPE(join, (PyTypeObject *)s_JoinWait) && !join->as_exit &&
            join->fiber != NULL) {
            Fiber *waiter = (Fiber *)join->fiber;
            self->observers = NULL;
            self->seen = self->seen || waiter->wait == (PyObject *)join;
            int woken = waiter->wait == (PyObject *)join ? wake(waiter, value) : 0;
            Py_DECREF(observers);
            if (woken < 0)
                return NULL;
        }
        else {
            PyObject *none = PyObject_CallMethodNoArgs((PyObject *)self, n__tell_observers);
            if (none == NULL)
                return NULL;
            Py_DECREF(none);
        }
    }
    return signal(s_DONE);
}

/* ------------------------------------------------------------------ primitives */

static int drive(Fiber *self, int here);

/* The stack as a list, for who wants more than its top; borrowed. */
static PyObject *
frames(Fiber *self)
{
    if (self->stack == NULL) {
        self->stack = PyList_New(self->only != NULL);
        if (self->stack != NULL && self->only != NULL) {
            PyList_SET_ITEM(self->stack, 0, self->only);
            self->only = NULL;
        }
    }
    return self->stack;
}

static int
stack_push(Fiber *self, PyObject *frame)
{
    if (self->only == NULL && self->stack == NULL) {
        self->only = Py_NewRef(frame);
        return 0;
    }
    PyObject *stack = frames(self);
    return stack == NULL ? -1 : PyList_Append(stack, frame);
}

static void
stack_pop(Fiber *self)
{
    if (self->stack == NULL) {
        Py_CLEAR(self->only);
        return;
    }
    Py_ssize_t n = PyList_GET_SIZE(self->stack);
    (void)PyList_SetSlice(self->stack, n - 1, n, NULL);
}

/* The top frame, or the one below it; NULL where there is none. Borrowed. */
static inline PyObject *
stack_top(Fiber *self, int below)
{
    if (self->stack == NULL)
        return below ? NULL : self->only;
    Py_ssize_t n = PyList_GET_SIZE(self->stack) - below;
    return n > 0 ? PyList_GET_ITEM(self->stack, n - 1) : NULL;
}

static PyObject *
enter(Fiber *fiber, Body *body)
{
    PyObject *coro;
    PyObject *args = body->args;
    if (body->f == NULL || args == NULL || !PyTuple_CheckExact(args))
        return PyObject_CallMethodOneArg((PyObject *)body, n__ev, (PyObject *)fiber);
    if (IS_NONE(body->kwargs) || PyDict_GET_SIZE(body->kwargs) == 0)
        coro = PyObject_Vectorcall(body->f, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args),
                                   NULL);
    else
        coro = PyObject_Call(body->f, args, body->kwargs);
    if (coro == NULL)
        return NULL;
    int bad = 0;
    if (!IS_NONE(body->declares))
        bad = stack_push(fiber, body->declares);
    if (!bad) {
        if (PyCoro_CheckExact(coro) && IS_INNER(fiber->face) &&
            ((Inner *)fiber->face)->depth == fiber->mask)
            bad = stack_push(fiber, coro);
        else {
            PyObject *none = PyObject_CallFunctionObjArgs(s_enter_body, fiber, coro, NULL);
            Py_XDECREF(none);
            bad = none == NULL;
        }
    }
    Py_DECREF(coro);
    return bad ? NULL : Py_NewRef(Py_None);
}

static PyObject *
fork_fiber(Fiber *fiber, Fork *fork)
{
    Queue *queue = (Queue *)fiber->queue;
    PyObject *home = NULL; /* a scope's entries */
    if (!IS_PLAIN(fiber) || fork->first == NULL || fork->masked != Py_False || (fork->immediate && queue->depth >= SHALLOW_CALLS))
        goto twin;
    if (fork->mode == IN_SCOPE) {
        if (fork->immediate || !Py_IS_TYPE(fork->owner, (PyTypeObject *)s_Scope))
            goto twin;
        PyObject *closed = PyObject_GetAttr(fork->owner, n__exit);
        if (closed == NULL)
            return NULL;
        Py_DECREF(closed);
        if (closed != Py_None)
            goto twin;
        home = PyObject_GetAttr(fork->owner, n__entries);
        if (home == NULL)
            return NULL;
    }
    Fiber *child = spawn(fiber, fork->first, 0, fork->code, fork->offset);
    if (child == NULL)
        goto failed;
    if (fork->mode == CHILD) {
        if (IS_NONE(fiber->children)) {
            PyObject *children = PyDict_New();
            if (children == NULL)
                goto failed;
            put(&fiber->children, children);
        }
        if (PyDict_SetItem(fiber->children, (PyObject *)child, Py_None) < 0)
            goto failed;
        put(&child->owner, Py_NewRef(fiber));
    }
    else if (home != NULL) {
        put(&child->owner, Py_NewRef(fork->owner));
        if (PyDict_SetItem(home, (PyObject *)child, Py_None) < 0)
            goto failed;
        Py_CLEAR(home);
    }
    if ((fork->immediate ? drive(child, 0) : push(queue, (PyObject *)child)) < 0)
        goto failed;
    return (PyObject *)child;
failed:
    Py_XDECREF(home);
    Py_XDECREF(child);
    return NULL;
twin:
    return PyObject_CallMethodOneArg((PyObject *)fork, n__ev, (PyObject *)fiber);
}

static PyObject *
join_fiber(Fiber *fiber, Join *join)
{
    Fiber *target = (Fiber *)join->target;
    if (target == NULL || !IS_FIBER(target) || target->state == ENDED || target == fiber || join->as_exit ||
        target->queue != fiber->queue)
        return PyObject_CallMethodOneArg((PyObject *)join, n__ev, (PyObject *)fiber);
    put(&join->fiber, Py_NewRef(fiber));
    if (IS_NONE(target->observers)) {
        PyObject *observers = PyList_New(1);
        if (observers == NULL)
            return NULL;
        PyList_SET_ITEM(observers, 0, Py_NewRef(join));
        put(&target->observers, observers);
    }
    else if (PyList_Append(target->observers, (PyObject *)join) < 0)
        return NULL;
    return suspend(fiber, (PyObject *)join);
}

static PyObject *
evaluate(Fiber *fiber, PyObject *node)
{
    PyTypeObject *kind = Py_TYPE(node);
    if (kind == (PyTypeObject *)s_Body)
        return enter(fiber, (Body *)node);
    if (kind == (PyTypeObject *)s_Fork)
        return fork_fiber(fiber, (Fork *)node);
    if (kind == (PyTypeObject *)s_JoinWait)
        return join_fiber(fiber, (Join *)node);
    if (kind == (PyTypeObject *)s_Succeed)
        return ((Value *)node)->value == NULL ? Py_NewRef(Py_None)
                                              : Py_NewRef(((Value *)node)->value);
    return PyObject_CallMethodOneArg(node, n__ev, (PyObject *)fiber);
}

/* A body yielded something that is no effect. */
static PyObject *
await_future(Fiber *self, PyObject *yielded)
{
    if (!IS_PLAIN(self))
        goto twin;
    if (yielded == Py_None) {
        put(&self->rv, NULL);
        return yield_turn(self);
    }
    if (!Py_IS_TYPE(yielded, (PyTypeObject *)s_Future) &&
        !Py_IS_TYPE(yielded, (PyTypeObject *)s_Task))
        goto twin;
    PyObject *blocking = PyObject_GetAttr(yielded, n__asyncio_future_blocking);
    Py_XDECREF(blocking);
    if (blocking != Py_True) {
        if (blocking == NULL)
            return NULL;
        goto twin;
    }
    Queue *queue = (Queue *)self->queue;
    PyObject *loop = PyObject_CallMethodNoArgs(yielded, n_get_loop);
    Py_XDECREF(loop);
    if (loop == NULL)
        return NULL;
    if (loop != queue->loop)
        goto twin;
    if (PyObject_SetAttr(yielded, n__asyncio_future_blocking, Py_False) < 0)
        return NULL;
    PyObject *done = PyObject_GetAttr((PyObject *)self, n__future_done);
    if (done == NULL)
        return NULL;
    PyObject *args[] = {yielded, done, queue->context};
    PyObject *none = PyObject_VectorcallMethod(n_add_done_callback, args, 2, kw_context);
    Py_DECREF(done);
    if (none == NULL)
        return NULL;
    Py_DECREF(none);
    return suspend(self, yielded);
twin:
    return PyObject_CallMethodOneArg((PyObject *)self, n__await_future, yielded);
}

/* ------------------------------------------------------------------ interrupts */

/* WithBodies._throw_into for this fiber's own interrupt, into a body that has seen nothing yet. */
static PyObject *
throw_into(Fiber *self, PyObject *coro)
{
    PyObject *cause = self->cause;
    PyObject *below = stack_top(self, 1);
    if (!IS_PLAIN(self))
        return PyObject_CallMethodOneArg((PyObject *)self, n__throw_into, coro);
    if (cause == NULL || cause != self->icause || self->rare != s_NOTHING_RARE ||
        (below != NULL && Py_IS_TYPE(below, (PyTypeObject *)s_Caught)))
        return PyObject_CallFunctionObjArgs(s_slow_throw, self, coro, NULL);
    PyObject *value = NULL, *yielded = NULL;
    PyObject *reasons = PyObject_GetAttr(cause, n_reasons);
    if (reasons == NULL)
        return NULL;
    PyObject *exc = PyObject_CallNoArgs(s_CancelledError);
    int again = self->pend && !self->mask;
    PyObject *thrown = exc == NULL ? NULL : PyTuple_Pack(3, exc, cause, again ? Py_True : Py_False);
    if (thrown == NULL ||
        PyObject_SetAttr(exc, n___fiber_interrupt__, PyTuple_GET_ITEM(reasons, 0)) < 0) {
        Py_XDECREF(thrown);
        Py_XDECREF(exc);
        Py_DECREF(reasons);
        return NULL;
    }
    Py_DECREF(reasons);
    self->delivered++;
    if (again)
        self->pend = 0;
    put(&self->thrown, thrown);
    yielded = PyObject_CallMethodOneArg(coro, n_throw, exc);
    PyObject *raised = yielded == NULL ? raised_exception() : NULL;
    if (raised == exc && self->thrown == thrown) {
        /* WithBodies._passed */
        put(&self->thrown, NULL);
        stack_pop(self);
        below = stack_top(self, 0);
        if (below != NULL && Py_IS_TYPE(below, (PyTypeObject *)s_Declares))
            stack_pop(self);
        if (again)
            self->pend = 1;
        if (again && self->icause != self->cause) /* asked for twice meanwhile */
            put(&self->cause, Py_NewRef(self->icause));
        value = signal(s_FAIL);
        goto out;
    }
    if (self->thrown == thrown) {
        PyObject *mark = PyObject_CallMethodNoArgs((PyObject *)self, n__mark);
        if (mark == NULL)
            goto out;
        Py_DECREF(mark);
    }
    if (yielded != NULL) {
        if (PyObject_TypeCheck(yielded, (PyTypeObject *)s_Node)) {
            put(&self->next, Py_NewRef(yielded));
            value = signal(s_NEXT);
        }
        else
            value = await_future(self, yielded);
        goto out;
    }
    stack_pop(self);
    if (PyErr_GivenExceptionMatches(raised, PyExc_StopIteration))
        value = Py_NewRef(((PyStopIterationObject *)raised)->value);
    else
        value = PyObject_CallMethodOneArg((PyObject *)self, n__left, raised);
out:
    Py_XDECREF(raised);
    Py_XDECREF(yielded);
    Py_DECREF(exc);
    return value;
}

/* Cancel the future that a body awaits, as asyncio does; without the callback, which would be a
 * second step. 0: it was done already, and may have failed. */
static int
cancel_future(Fiber *self, PyObject *future)
{
    PyObject *call = PyObject_GetAttr((PyObject *)self, n__future_done);
    if (call == NULL)
        return -1;
    PyObject *none = PyObject_CallMethodOneArg(future, n_remove_done_callback, call);
    Py_DECREF(call);
    if (none == NULL)
        return -1;
    Py_DECREF(none);
    PyObject *cancelled = PyObject_CallMethodNoArgs(future, n_cancel);
    if (cancelled == NULL)
        return -1;
    Py_DECREF(cancelled);
    if (cancelled != Py_True)
        return 0;
    Py_CLEAR(self->wait);
    return 1;
}

/* Interruptible._stop_waiting for a Future and for our own waits. 0: the twin has to do it. */
static int
stop_waiting(Fiber *self)
{
    PyObject *wait = Py_NewRef(self->wait);
    int stopped;
    self->state = RUNNING; /* as in the twin: for callbacks that are compared here */
    if (Py_IS_TYPE(wait, (PyTypeObject *)s_Future))
        stopped = cancel_future(self, wait);
    else {
        PyObject *abandon = PyObject_GetAttr(wait, n__abandon);
        if (abandon == NULL) {
            PyErr_Clear(); /* another kind of future */
            stopped = 0;
        }
        else {
            Py_CLEAR(self->wait);
            PyObject *none = PyObject_CallOneArg(abandon, (PyObject *)self);
            Py_DECREF(abandon);
            Py_XDECREF(none);
            stopped = none == NULL ? -1 : 1;
        }
    }
    if (stopped <= 0) {
        self->state = SUSPENDED;
        put(&self->wait, Py_NewRef(wait));
    }
    Py_DECREF(wait);
    return stopped;
}

/* fibers.loop.room.has_room. */
static int
has_room(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyThreadState_Get()->py_recursion_remaining >= ROOM_CALLS;
#else
    return PyThreadState_Get()->recursion_remaining >= ROOM_CALLS;
#endif
}

/* Interruptible._interrupt_here for the first interrupt of a fiber. */
static int
interrupt(Fiber *self, PyObject *by, PyObject *reason)
{
    PyTypeObject *kind = (PyTypeObject *)s_Interrupt;
    /* A reason of this fiber's own (PD14). */
    PyObject *why = kind->tp_alloc(kind, 0);
    if (why == NULL || PyObject_SetAttr(why, n_by, by) < 0 ||
        PyObject_SetAttr(why, n_reason, reason) < 0) {
        Py_XDECREF(why);
        return -1;
    }
    kind = (PyTypeObject *)s_Cause;
    PyObject *own = kind->tp_alloc(kind, 0);
    PyObject *reasons = PyTuple_Pack(1, why);
    Py_DECREF(why);
    if (own == NULL || reasons == NULL || PyObject_SetAttr(own, n_reasons, reasons) < 0) {
        Py_XDECREF(own);
        Py_XDECREF(reasons);
        return -1;
    }
    Py_DECREF(reasons);
    put(&self->icause, own);
    self->pend = 1;
    if (self->mask)
        return 0;
    if (self->state == RUNNING) {
        self->attn = 1;
        return 0;
    }
    PyObject *none;
    if (self->rv == s_FAIL || ((Queue *)self->queue)->depth >= SHALLOW_CALLS || !has_room())
        goto twin;
    if (self->state == SUSPENDED) {
        int stopped = stop_waiting(self);
        if (stopped < 0)
            return -1;
        if (!stopped)
            goto twin;
    }
    else
        self->stale++;
    put(&self->cause, Py_NewRef(self->icause));
    put(&self->rv, Py_NewRef(s_FAIL));
    self->state = RUNNING;
    return drive(self, 0);
twin:
    none = PyObject_CallMethodNoArgs((PyObject *)self, n__unwind);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

static PyObject *
Fiber_interrupt_here(Fiber *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    if (self->state == ENDED)
        Py_RETURN_NONE;
    int first = names == NULL && (n == 1 || (n == 2 && args[1] == Py_False)) && IS_PLAIN(self) &&
                IS_NONE(self->icause) && Py_IS_TYPE(args[0], (PyTypeObject *)s_Interrupt);
    if (!first) {
        PyObject *all[4] = {(PyObject *)self};
        Py_ssize_t total = n + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
        if (total > 3) {
            PyErr_SetString(PyExc_TypeError, "too many arguments");
            return NULL;
        }
        for (Py_ssize_t i = 0; i < total; i++)
            all[i + 1] = args[i];
        return PyObject_Vectorcall(s_slow_interrupt, all, n + 1, names);
    }
    PyObject *by = PyObject_GetAttr(args[0], n_by);
    PyObject *reason = PyObject_GetAttr(args[0], n_reason);
    int done = by == NULL || reason == NULL ? -1 : interrupt(self, by, reason);
    Py_XDECREF(by);
    Py_XDECREF(reason);
    if (done < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ the loop */

/* FiberCore._run: one step. A new reference to a signal; never raises. */
static PyObject *
run_step(Fiber *self)
{
    PyObject *value, *top, *res;
    int ops = op_budget;
    self->state = RUNNING;
    value = self->rv == NULL ? Py_NewRef(Py_None) : self->rv;
    self->rv = NULL;
    if (!IS_NONE(self->cont)) {
        top = self->cont;
        self->cont = NULL;
        Py_SETREF(value, PyObject_CallMethodOneArg(top, n__ev, (PyObject *)self));
        Py_DECREF(top);
    }
    for (;;) {
        if (value == NULL) {
            PyObject *exc = raised_exception();
            value = PyObject_CallMethodOneArg((PyObject *)self, n__raised, exc);
            Py_DECREF(exc);
            if (value == NULL && PyErr_ExceptionMatches(PyExc_RecursionError)) {
                int limit = Py_GetRecursionLimit();
                exc = raised_exception();
                Py_SetRecursionLimit(limit + MORE_ROOM_CALLS);
                value = PyObject_CallMethodOneArg((PyObject *)self, n__overflowed, exc);
                Py_SetRecursionLimit(limit);
                Py_DECREF(exc);
            }
            if (value == NULL) { /* it never raises; if it does there is nothing to go on with */
                PyErr_WriteUnraisable((PyObject *)self);
                return signal(s_DONE);
            }
        }
        if (self->attn) { /* also where something raised: the interrupt joins it */
            Py_SETREF(value, PyObject_CallMethodOneArg((PyObject *)self, n__attend, value));
            if (value == NULL)
                continue;
        }
        if (Py_IS_TYPE(value, Py_TYPE(s_NEXT))) {
            if (value == s_NEXT) {
                if (--ops == 0) {
                    put(&self->rv, value);
                    value = IS_PLAIN(self)
                                ? yield_turn(self)
                                : PyObject_CallMethodNoArgs((PyObject *)self, n__yield_turn);
                    if (value == NULL)
                        continue;
                    return value;
                }
                top = self->next == NULL ? Py_NewRef(Py_None) : self->next;
                self->next = NULL; /* not kept while it runs: what is suspended may be many */
                Py_SETREF(value, evaluate(self, top));
                Py_DECREF(top);
            }
            else if (value == s_FAIL) {
                top = Py_XNewRef(stack_top(self, 0));
                if (top == NULL) {
                    PyObject *cause = Py_XNewRef(self->cause);
                    Py_SETREF(value, end(self, 0, cause));
                    Py_XDECREF(cause);
                    continue;
                }
                if (PyCoro_CheckExact(top))
                    Py_SETREF(value, throw_into(self, top));
                else {
                    PyObject *cause = Py_XNewRef(self->cause);
                    stack_pop(self);
                    Py_SETREF(value, PyObject_CallMethodObjArgs(top, n__err, self, cause, NULL));
                    Py_XDECREF(cause);
                }
                Py_DECREF(top);
            }
            else
                return value;
            continue;
        }
        top = Py_XNewRef(stack_top(self, 0));
        if (top == NULL) {
            Py_SETREF(value, end(self, 1, value));
            continue;
        }
        if (!PyCoro_CheckExact(top)) {
            stack_pop(self);
            Py_SETREF(value, PyObject_CallMethodObjArgs(top, n__val, self, value, NULL));
            Py_DECREF(top);
            continue;
        }
        switch (PyIter_Send(top, value, &res)) {
        case PYGEN_RETURN:
            stack_pop(self);
            Py_SETREF(value, res);
            break;
        case PYGEN_ERROR: {
            PyObject *exc = raised_exception();
            stack_pop(self);
            Py_CLEAR(top); /* its frame may hold much that the failure is about */
            Py_SETREF(value, PyObject_CallMethodOneArg((PyObject *)self, n__left, exc));
            Py_DECREF(exc);
            break;
        }
        default:
            if (PyObject_TypeCheck(res, (PyTypeObject *)s_Node)) {
                if (self->attn || ops <= 1) {
                    put(&self->next, res);
                    Py_SETREF(value, signal(s_NEXT));
                }
                else {
                    ops--;
                    Py_SETREF(value, evaluate(self, res));
                    Py_DECREF(res);
                }
            }
            else {
                Py_SETREF(value, await_future(self, res));
                Py_DECREF(res);
            }
        }
        Py_XDECREF(top);
    }
}

/* A step in the fiber's own Context. ``here``: that one runs already (PD12). */
static PyObject *
run_in_context(Fiber *self, int here)
{
    if (here)
        return run_step(self);
    if (IS_NONE(self->ctx)) { /* the pure twin fails here too: it has ended, or never was made */
        PyErr_SetString(PyExc_RuntimeError, "a fiber that can't run was to run");
        PyErr_WriteUnraisable((PyObject *)self);
        return signal(s_DONE);
    }
    PyObject *ctx = Py_NewRef(self->ctx);
    if (PyContext_Enter(ctx) < 0) {
        /* A root fiber that shares its task's Context, while code of that Context runs below: in
         * turn, as soon as that code is suspended. */
        PyErr_Clear();
        Py_DECREF(ctx);
        self->state = READY;
        if (push((Queue *)self->queue, (PyObject *)self) < 0)
            PyErr_WriteUnraisable((PyObject *)self);
        return signal(s_SUSPEND);
    }
    PyObject *said = run_step(self);
    if (PyContext_Exit(ctx) < 0)
        PyErr_WriteUnraisable((PyObject *)self);
    Py_DECREF(ctx);
    return said;
}

/* FiberCore._follow: ``first`` said SWITCH; run the others and come back to it. */
static void
follow(Fiber *first, int here)
{
    PyObject *loop = ((Queue *)first->queue)->loop;
    PyObject *waiting = PyList_New(0);
    Fiber *fiber = (Fiber *)Py_NewRef(first);
    int switched = waiting != NULL;
    if (!switched)
        PyErr_WriteUnraisable((PyObject *)first);
    for (;;) {
        if (switched) {
            if (PyList_Append(waiting, (PyObject *)fiber) < 0)
                PyErr_WriteUnraisable((PyObject *)fiber);
            Fiber *next = (Fiber *)fiber->switch_to;
            fiber->switch_to = NULL;
            Py_SETREF(fiber, next);
        }
        else {
            Py_ssize_t n = waiting == NULL ? 0 : PyList_GET_SIZE(waiting);
            if (n == 0)
                break;
            Py_SETREF(fiber, (Fiber *)Py_NewRef(PyList_GET_ITEM(waiting, n - 1)));
            (void)PyList_SetSlice(waiting, n - 1, n, NULL);
        }
        running = fiber;
        if (put_current(loop, fiber->face) < 0)
            PyErr_WriteUnraisable((PyObject *)fiber);
        PyObject *said = run_in_context(fiber, here && fiber == first);
        switched = said == s_SWITCH;
        Py_DECREF(said);
    }
    Py_XDECREF(waiting);
    Py_DECREF(fiber);
}

static int
drive(Fiber *self, int here)
{
    Queue *queue = (Queue *)Py_NewRef(self->queue);
    PyObject *loop = Py_NewRef(queue->loop);
    PyObject *before = get_current(loop);
    Fiber *outer = running;
    Py_INCREF(self);
    if (put_current(loop, self->face) < 0)
        PyErr_WriteUnraisable((PyObject *)self);
    running = self;
    queue->depth++;
    queue->steps++;
    PyObject *said = run_in_context(self, here);
    if (said == s_SWITCH)
        follow(self, here);
    Py_DECREF(said);
    queue->depth--;
    running = outer;
    if (put_current(loop, before) < 0)
        PyErr_WriteUnraisable((PyObject *)self);
    Py_XDECREF(before);
    Py_DECREF(self);
    Py_DECREF(loop);
    Py_DECREF(queue);
    return 0;
}

static PyObject *
Queue_run_ready(Queue *self, PyObject *arg)
{
    long steps = PyLong_AsLong(arg);
    if (steps == -1 && PyErr_Occurred())
        return NULL;
    PyObject *ready = Py_NewRef(self->ready);
    PyObject *loop = Py_NewRef(self->loop);
    PyObject *before = get_current(loop);
    Fiber *outer = running;
    PyObject *failed = NULL;
    self->depth++;
    while (steps > 0) {
        Py_ssize_t left = PyObject_Size(ready);
        if (left <= 0)
            break;
        Fiber *fiber = (Fiber *)PyObject_CallMethodNoArgs(ready, n_popleft);
        if (fiber == NULL) {
            failed = raised_exception();
            break;
        }
        if (fiber->stale) {
            /* It was interrupted while it waited here, and has run since. */
            fiber->stale--;
            Py_DECREF(fiber);
            continue;
        }
        steps--;
        self->steps++;
        if (put_current(loop, fiber->face) < 0)
            PyErr_WriteUnraisable((PyObject *)fiber);
        running = fiber;
        PyObject *said = run_in_context(fiber, 0);
        if (said == s_SWITCH)
            follow(fiber, 0);
        running = NULL;
        Py_DECREF(said);
        Py_DECREF(fiber);
    }
    self->depth--;
    running = outer;
    if (put_current(loop, before) < 0)
        PyErr_WriteUnraisable((PyObject *)self);
    Py_XDECREF(before);
    Py_DECREF(loop);
    Py_DECREF(ready);
    if (failed != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(failed), failed);
        Py_DECREF(failed);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------ Fiber's methods */

static PyObject *
Fiber_drive(Fiber *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    /* The one keyword is ``here``. */
    int here = names != NULL && PyTuple_GET_SIZE(names) ? PyObject_IsTrue(args[n]) : 0;
    if (here < 0 || drive(self, here) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
Fiber_suspend(Fiber *self, PyObject *wait)
{
    return suspend(self, wait);
}

static PyObject *
Fiber_yield_turn(Fiber *self, PyObject *unused)
{
    return yield_turn(self);
}

static PyObject *
Fiber_register(Fiber *self, PyObject *unused)
{
    if (enroll(self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
Fiber_wake(Fiber *self, PyObject *value)
{
    if (wake(self, value) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
Fiber_wake_cause(Fiber *self, PyObject *cause)
{
    put(&self->cause, Py_NewRef(cause));
    return Fiber_wake(self, s_FAIL);
}

static PyObject *
Fiber_wake_next(Fiber *self, PyObject *node)
{
    put(&self->next, Py_NewRef(node));
    return Fiber_wake(self, s_NEXT);
}

static PyObject *
Fiber_future_done(Fiber *self, PyObject *future)
{
    if (self->wait != future)
        Py_RETURN_NONE;
    if (self->attn || self->rare != s_NOTHING_RARE)
        return PyObject_CallFunctionObjArgs(s_slow_future_done, self, future, NULL);
    Py_CLEAR(self->wait);
    put(&self->rv, NULL);
    if (drive(self, 0) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* FiberState._exit_made. */
static PyObject *
Fiber_exit_made(Fiber *self, PyObject *unused)
{
    if (!IS_NONE(self->exit))
        return Py_NewRef(self->exit);
    if (!self->ok || self->result == NULL)
        return PyObject_CallOneArg(s_slow_exit_made, (PyObject *)self);
    PyTypeObject *kind = (PyTypeObject *)s_Success;
    PyObject *made = kind->tp_alloc(kind, 0);
    /* Through the slot: the class guards its own __setattr__. */
    if (made != NULL && Py_TYPE(s_inner_value)->tp_descr_set(s_inner_value, made, self->result) < 0)
        Py_CLEAR(made);
    if (made == NULL)
        return NULL;
    put(&self->exit, Py_NewRef(made));
    return made;
}

static PyObject *
Fiber_get_stack(Fiber *self, void *unused)
{
    return Py_XNewRef(frames(self));
}

static int
Fiber_set_stack(Fiber *self, PyObject *value, void *unused)
{
    if (value == NULL || !PyList_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError, "the stack is a list");
        return -1;
    }
    put(&self->stack, Py_NewRef(value));
    Py_CLEAR(self->only);
    return 0;
}

/* ------------------------------------------------------------------ awaiting */

static Await *spare_awaits[16];
static int spare_count = 0;

static PyObject *
new_await(PyObject *node, PyObject *value) /* takes both references */
{
    Await *self;
    if (spare_count) {
        self = spare_awaits[--spare_count];
        _Py_NewReference((PyObject *)self);
    }
    else {
        self = PyObject_GC_New(Await, &Await_Type);
        if (self == NULL) {
            Py_XDECREF(node);
            Py_XDECREF(value);
            return NULL;
        }
    }
    self->node = node;
    self->value = value;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static void
Await_dealloc(Await *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->node);
    Py_CLEAR(self->value);
    if (spare_count < 16)
        spare_awaits[spare_count++] = self;
    else
        PyObject_GC_Del(self);
}

static int
Await_traverse(Await *self, visitproc visit, void *arg)
{
    Py_VISIT(self->node);
    Py_VISIT(self->value);
    return 0;
}

static int
Await_clear(Await *self)
{
    Py_CLEAR(self->node);
    Py_CLEAR(self->value);
    return 0;
}

static PySendResult
Await_am_send(Await *self, PyObject *value, PyObject **result)
{
    if (self->node != NULL) {
        *result = self->node;
        self->node = NULL;
        return PYGEN_NEXT;
    }
    if (self->value != NULL) {
        *result = self->value;
        self->value = NULL;
        return PYGEN_RETURN;
    }
    *result = Py_NewRef(value);
    return PYGEN_RETURN;
}

static PyObject *
stop_with(PyObject *value) /* takes the reference */
{
    if (value != Py_None) {
        PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
        if (stop != NULL) {
            PyErr_SetObject(PyExc_StopIteration, stop);
            Py_DECREF(stop);
        }
    }
    else
        PyErr_SetNone(PyExc_StopIteration);
    Py_DECREF(value);
    return NULL;
}

static PyObject *
Await_send(Await *self, PyObject *value)
{
    PyObject *result;
    return Await_am_send(self, value, &result) == PYGEN_NEXT ? result : stop_with(result);
}

static PyObject *
Await_next(Await *self)
{
    return Await_send(self, Py_None);
}

static PyMethodDef Await_methods[] = {
    {"send", (PyCFunction)Await_send, METH_O, NULL},
    {NULL},
};

static PyAsyncMethods Await_async = {.am_send = (sendfunc)Await_am_send};

static PyTypeObject Await_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fibers._speed.Await",
    .tp_basicsize = sizeof(Await),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)Await_dealloc,
    .tp_traverse = (traverseproc)Await_traverse,
    .tp_clear = (inquiry)Await_clear,
    .tp_as_async = &Await_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = (iternextfunc)Await_next,
    .tp_methods = Await_methods,
};

static PyObject *
await_effect(PyObject *self)
{
    if (inside() == NULL)
        return PyErr_Occurred() ? NULL : PyObject_CallMethodNoArgs(self, n__await_outside);
    return new_await(Py_NewRef(self), NULL);
}

/* Fiber.__await__: the value of one that has ended well needs no way through the run loop. */
static PyObject *
await_fiber(Fiber *self)
{
    Fiber *by = inside();
    if (by == NULL && PyErr_Occurred())
        return NULL;
    Queue *queue = (Queue *)self->queue;
    if (by != NULL && self->state == ENDED && self->ok && !by->attn) {
        if (queue->gifts <= 0)
            return PyObject_CallMethodNoArgs((PyObject *)self, n__await_breather);
        queue->gifts--;
        return new_await(NULL, Py_NewRef(self->result));
    }
    /* It cancels what it waits for by being cancelled itself while it awaits it; on 3.11 only where
     * it is given no timeout. */
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        Py_DECREF(code);
        if ((PyObject *)code == s_wait_for)
            return PyObject_CallOneArg(s_slow_await, (PyObject *)self);
    }
    if (by == NULL)
        return PyObject_CallMethodNoArgs((PyObject *)self, n__await_outside);
    PyTypeObject *kind = (PyTypeObject *)s_JoinWait;
    Join *join = (Join *)kind->tp_alloc(kind, 0);
    if (join == NULL)
        return NULL;
    join->target = Py_NewRef(self);
    return new_await((PyObject *)join, NULL);
}

/* ------------------------------------------------------------------ types */

#define MEMBER(type, name, kind, field) {name, kind, offsetof(type, field), 0, NULL}

#define FIBER_OBJECTS(X)                                                                 \
    X(queue) X(ctx) X(env) X(code) X(only) X(stack) X(rv) X(next) X(wait) X(icause) X(cause)     \
    X(cont) X(switch_to) X(face) X(result) X(exit) X(observers) X(children) X(owner) X(rare) \
    X(thrown)
#define QUEUE_OBJECTS(X) X(loop) X(ready) X(turn) X(live) X(fatal) X(on_fatal) X(context)
#define INNER_OBJECTS(X) X(fiber) X(told)
#define BODY_OBJECTS(X) X(f) X(args) X(kwargs) X(declares)
#define FORK_OBJECTS(X) X(first) X(owner) X(masked) X(code)
#define JOIN_OBJECTS(X) X(target) X(fiber)
#define VALUE_OBJECTS(X) X(value)

#define VISIT(field) Py_VISIT(self->field);
#define CLEAR(field) Py_CLEAR(self->field);
#define COLLECTED(T, OBJECTS, WEAK)                                                      \
    static int T##_traverse(T *self, visitproc visit, void *arg)                         \
    {                                                                                    \
        OBJECTS(VISIT) return 0;                                                         \
    }                                                                                    \
    static int T##_clear(T *self)                                                        \
    {                                                                                    \
        OBJECTS(CLEAR) return 0;                                                         \
    }                                                                                    \
    static void T##_dealloc(T *self)                                                     \
    {                                                                                    \
        PyObject_GC_UnTrack(self);                                                       \
        WEAK;                                                                            \
        (void)T##_clear(self);                                                           \
        Py_TYPE(self)->tp_free((PyObject *)self);                                        \
    }
#define FORGET_WEAK                                                                      \
    if (self->weakrefs != NULL)                                                          \
    PyObject_ClearWeakRefs((PyObject *)self)

COLLECTED(Fiber, FIBER_OBJECTS, FORGET_WEAK)
COLLECTED(Queue, QUEUE_OBJECTS, FORGET_WEAK)
COLLECTED(Inner, INNER_OBJECTS, FORGET_WEAK)
COLLECTED(Body, BODY_OBJECTS, (void)0)
COLLECTED(Fork, FORK_OBJECTS, (void)0)
COLLECTED(Join, JOIN_OBJECTS, (void)0)
COLLECTED(Value, VALUE_OBJECTS, (void)0)

#define TYPE(T, doc, ...)                                                                \
    static PyTypeObject T##_Type = {                                                     \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fibers._speed." #T,                    \
        .tp_doc = doc,                                                                   \
        .tp_basicsize = sizeof(T),                                                       \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,       \
        .tp_new = PyType_GenericNew,                                                     \
        .tp_dealloc = (destructor)T##_dealloc,                                           \
        .tp_traverse = (traverseproc)T##_traverse,                                       \
        .tp_clear = (inquiry)T##_clear,                                                  \
        __VA_ARGS__}

static PyMemberDef Queue_members[] = {
    MEMBER(Queue, "loop", T_OBJECT, loop),       MEMBER(Queue, "ready", T_OBJECT, ready),
    MEMBER(Queue, "turn", T_OBJECT, turn),       MEMBER(Queue, "live", T_OBJECT, live),
    MEMBER(Queue, "fatal", T_OBJECT, fatal),     MEMBER(Queue, "on_fatal", T_OBJECT, on_fatal),
    MEMBER(Queue, "context", T_OBJECT, context), MEMBER(Queue, "depth", T_INT, depth),
    MEMBER(Queue, "gifts", T_INT, gifts),        MEMBER(Queue, "steps", T_LONGLONG, steps),
    MEMBER(Queue, "_armed", T_BOOL, armed),      MEMBER(Queue, "manual", T_BOOL, manual),
    {NULL},
};
static PyMethodDef Queue_methods[] = {
    {"run_ready", (PyCFunction)Queue_run_ready, METH_O, NULL},
    {NULL},
};
TYPE(Queue, "What a ReadyQueue consists of.", .tp_members = Queue_members,
     .tp_methods = Queue_methods, .tp_weaklistoffset = offsetof(Queue, weakrefs));

static PyMemberDef Fiber_members[] = {
    MEMBER(Fiber, "_queue", T_OBJECT, queue),
    MEMBER(Fiber, "_ctx", T_OBJECT, ctx),
    MEMBER(Fiber, "_env", T_OBJECT, env),
    MEMBER(Fiber, "_rv", T_OBJECT, rv),
    MEMBER(Fiber, "_next", T_OBJECT, next),
    MEMBER(Fiber, "_wait", T_OBJECT, wait),
    MEMBER(Fiber, "_icause", T_OBJECT, icause),
    MEMBER(Fiber, "_cause", T_OBJECT_EX, cause),
    MEMBER(Fiber, "_cont", T_OBJECT, cont),
    MEMBER(Fiber, "_switch", T_OBJECT_EX, switch_to),
    MEMBER(Fiber, "_face", T_OBJECT_EX, face),
    MEMBER(Fiber, "_result", T_OBJECT_EX, result),
    MEMBER(Fiber, "_exit", T_OBJECT, exit),
    MEMBER(Fiber, "_observers", T_OBJECT, observers),
    MEMBER(Fiber, "_children", T_OBJECT, children),
    MEMBER(Fiber, "_owner", T_OBJECT, owner),
    MEMBER(Fiber, "_rare", T_OBJECT, rare),
    MEMBER(Fiber, "id", T_LONGLONG, id),
    MEMBER(Fiber, "_mask", T_INT, mask),
    MEMBER(Fiber, "_base_mask", T_INT, base_mask),
    MEMBER(Fiber, "_stale", T_INT, stale),
    MEMBER(Fiber, "_delivered", T_INT, delivered),
    MEMBER(Fiber, "_thrown", T_OBJECT, thrown),
    MEMBER(Fiber, "_state", T_BYTE, state),
    MEMBER(Fiber, "_pend", T_BOOL, pend),
    MEMBER(Fiber, "_attn", T_BOOL, attn),
    MEMBER(Fiber, "_ok", T_BOOL, ok),
    MEMBER(Fiber, "_registered", T_BOOL, registered),
    MEMBER(Fiber, "_seen", T_BOOL, seen),
    {NULL},
};
static PyObject *
Fiber_site(Fiber *self, void *unused)
{
    return make_site(self->code, self->offset);
}
static PyGetSetDef Fiber_getset[] = {
    {"_site", (getter)Fiber_site, NULL, NULL, NULL},
    {"_stack", (getter)Fiber_get_stack, (setter)Fiber_set_stack, NULL, NULL},
    {NULL},
};
static PyMethodDef Fiber_methods[] = {
    {"_drive", (PyCFunction)(void (*)(void))Fiber_drive, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_interrupt_here", (PyCFunction)(void (*)(void))Fiber_interrupt_here,
     METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_suspend", (PyCFunction)Fiber_suspend, METH_O, NULL},
    {"_yield_turn", (PyCFunction)Fiber_yield_turn, METH_NOARGS, NULL},
    {"_register", (PyCFunction)Fiber_register, METH_NOARGS, NULL},
    {"_wake", (PyCFunction)Fiber_wake, METH_O, NULL},
    {"_wake_cause", (PyCFunction)Fiber_wake_cause, METH_O, NULL},
    {"_wake_next", (PyCFunction)Fiber_wake_next, METH_O, NULL},
    {"_future_done", (PyCFunction)Fiber_future_done, METH_O, NULL},
    {"_exit_made", (PyCFunction)Fiber_exit_made, METH_NOARGS, NULL},
    {NULL},
};
static PyAsyncMethods Fiber_async = {.am_await = (unaryfunc)await_fiber};
TYPE(Fiber, "What a fiber consists of.", .tp_members = Fiber_members, .tp_getset = Fiber_getset,
     .tp_methods = Fiber_methods, .tp_init = (initproc)Fiber_init, .tp_as_async = &Fiber_async,
     .tp_weaklistoffset = offsetof(Fiber, weakrefs));

static int
Inner_init(Inner *self, PyObject *args, PyObject *kwargs)
{
    PyObject *fiber;
    int depth;
    if (!PyArg_ParseTuple(args, "Oi:InnerTask", &fiber, &depth))
        return -1;
    put(&self->fiber, Py_NewRef(fiber));
    put(&self->told, Py_NewRef(s_NOTHING_TOLD));
    self->depth = depth;
    return 0;
}
static PyMemberDef Inner_members[] = {
    MEMBER(Inner, "_fiber", T_OBJECT, fiber),
    MEMBER(Inner, "_told", T_OBJECT, told),
    MEMBER(Inner, "_depth", T_INT, depth),
    {NULL},
};
TYPE(Inner, "What an inner task consists of.", .tp_members = Inner_members,
     .tp_init = (initproc)Inner_init, .tp_weaklistoffset = offsetof(Inner, weakrefs));

/* type.__call__, for arguments that a constructor of ours does not take at once. */
static PyObject *
construct(PyObject *kind, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    PyObject *made = NULL, *given = PyTuple_New(n), *named = NULL;
    for (Py_ssize_t i = 0; given != NULL && i < n; i++)
        PyTuple_SET_ITEM(given, i, Py_NewRef(args[i]));
    if (given != NULL && names != NULL && (named = PyDict_New()) != NULL)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++)
            if (PyDict_SetItem(named, PyTuple_GET_ITEM(names, i), args[n + i]) < 0)
                Py_CLEAR(given);
    if (given != NULL && (names == NULL || named != NULL))
        made = PyType_Type.tp_call(kind, given, named);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return made;
}

static int
Body_init(Body *self, PyObject *args, PyObject *kwargs)
{
    PyObject *f, *given, *names, *declares;
    if (!PyArg_ParseTuple(args, "OO!OO:BodyOp", &f, &PyTuple_Type, &given, &names, &declares))
        return -1;
    put(&self->f, Py_NewRef(f));
    put(&self->args, Py_NewRef(given));
    /* An empty dict is the price of ** at each call of an effect function; it need not be kept. */
    if (PyDict_CheckExact(names) && PyDict_GET_SIZE(names) == 0)
        names = NULL;
    put(&self->kwargs, Py_XNewRef(names));
    put(&self->declares, Py_NewRef(declares));
    return 0;
}
static PyObject *
Body_kwargs(Body *self, void *unused)
{
    return IS_NONE(self->kwargs) ? PyDict_New() : Py_NewRef(self->kwargs);
}
/* The constructor as Python code calls it, without the tuple that tp_init would be given. */
static PyObject *
Body_call(PyObject *kind, PyObject *const *args, size_t flags, PyObject *names)
{
    if (PyVectorcall_NARGS(flags) != 4 || names != NULL || !PyTuple_CheckExact(args[1]))
        return construct(kind, args, PyVectorcall_NARGS(flags), names);
    Body *self = (Body *)((PyTypeObject *)kind)->tp_alloc((PyTypeObject *)kind, 0);
    if (self != NULL) {
        self->f = Py_NewRef(args[0]);
        self->args = Py_NewRef(args[1]);
        if (!PyDict_CheckExact(args[2]) || PyDict_GET_SIZE(args[2]))
            self->kwargs = Py_NewRef(args[2]);
        self->declares = Py_NewRef(args[3]);
    }
    return (PyObject *)self;
}
static PyMemberDef Body_members[] = {
    MEMBER(Body, "f", T_OBJECT, f),
    MEMBER(Body, "args", T_OBJECT, args),
    MEMBER(Body, "declares", T_OBJECT, declares),
    {NULL},
};
static PyGetSetDef Body_getset[] = {
    {"kwargs", (getter)Body_kwargs, NULL, NULL, NULL},
    {NULL},
};
TYPE(Body, "What a call of an effect function consists of.", .tp_members = Body_members,
     .tp_getset = Body_getset, .tp_init = (initproc)Body_init);

static int
Fork_init(Fork *self, PyObject *args, PyObject *kwargs)
{
    PyObject *first, *owner, *masked, *site;
    int mode, immediate;
    if (!PyArg_ParseTuple(args, "OiOpOO:ForkOp", &first, &mode, &owner, &immediate, &masked, &site))
        return -1;
    put(&self->first, Py_NewRef(first));
    put(&self->owner, Py_NewRef(owner));
    put(&self->masked, Py_NewRef(masked));
    if (read_site(site, &self->code, &self->offset) < 0)
        return -1;
    self->mode = mode;
    self->immediate = immediate != 0;
    return 0;
}
static PyObject *
Fork_call(PyObject *kind, PyObject *const *args, size_t flags, PyObject *names)
{
    /* A flag that is no bool, or a mode out of range, is for tp_init to judge. */
    if (PyVectorcall_NARGS(flags) != 6 || names != NULL || !PyBool_Check(args[3]) ||
        !PyLong_CheckExact(args[1]))
        return construct(kind, args, PyVectorcall_NARGS(flags), names);
    Fork *self = (Fork *)((PyTypeObject *)kind)->tp_alloc((PyTypeObject *)kind, 0);
    if (self == NULL)
        return NULL;
    self->first = Py_NewRef(args[0]);
    self->mode = (int)PyLong_AsLong(args[1]);
    self->owner = Py_NewRef(args[2]);
    self->immediate = args[3] == Py_True;
    self->masked = Py_NewRef(args[4]);
    if ((self->mode == -1 && PyErr_Occurred()) ||
        read_site(args[5], &self->code, &self->offset) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}
static PyMemberDef Fork_members[] = {
    MEMBER(Fork, "first", T_OBJECT, first),     MEMBER(Fork, "owner", T_OBJECT, owner),
    MEMBER(Fork, "masked", T_OBJECT, masked),
    MEMBER(Fork, "mode", T_INT, mode),          MEMBER(Fork, "immediate", T_BOOL, immediate),
    {NULL},
};
static PyObject *
Fork_site(Fork *self, void *unused)
{
    return make_site(self->code, self->offset);
}
static PyGetSetDef Fork_getset[] = {
    {"site", (getter)Fork_site, NULL, NULL, NULL},
    {NULL},
};
TYPE(Fork, "What a fork consists of.", .tp_members = Fork_members, .tp_getset = Fork_getset,
     .tp_init = (initproc)Fork_init);

static int
Join_init(Join *self, PyObject *args, PyObject *kwargs)
{
    PyObject *target;
    int as_exit = 0;
    if (!PyArg_ParseTuple(args, "O|p:JoinWait", &target, &as_exit))
        return -1;
    put(&self->target, Py_NewRef(target));
    self->as_exit = as_exit != 0;
    return 0;
}
static PyMemberDef Join_members[] = {
    MEMBER(Join, "target", T_OBJECT, target),
    MEMBER(Join, "fiber", T_OBJECT_EX, fiber),
    MEMBER(Join, "as_exit", T_BOOL, as_exit),
    {NULL},
};
TYPE(Join, "What one join consists of.", .tp_members = Join_members, .tp_init = (initproc)Join_init);

static int
Value_init(Value *self, PyObject *args, PyObject *kwargs)
{
    PyObject *value;
    if (!PyArg_ParseTuple(args, "O:SucceedOp", &value))
        return -1;
    put(&self->value, Py_NewRef(value));
    return 0;
}
static PyMemberDef Value_members[] = {
    MEMBER(Value, "value", T_OBJECT, value),
    {NULL},
};
TYPE(Value, "A value that a node holds.", .tp_members = Value_members,
     .tp_init = (initproc)Value_init);

static PyAsyncMethods Effect_async = {.am_await = await_effect};
static PyTypeObject Effect_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fibers._speed.Effect",
    .tp_doc = "Something that a body can await.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_as_async = &Effect_async,
};

/* ------------------------------------------------------------------ the module */

static PyObject *
setup(PyObject *module, PyObject *args, PyObject *given)
{
    PyObject *found;
    Py_ssize_t taken = 0;
#define TAKE(name)                                                                       \
    found = PyDict_GetItemString(given, #name);                                          \
    if (found != NULL) {                                                                 \
        put(&s_##name, Py_NewRef(found));                                                \
        taken++;                                                                         \
    }
    FOREIGN(TAKE)
    if (s_Body != NULL)
        ((PyTypeObject *)s_Body)->tp_vectorcall = Body_call;
    if (s_Fork != NULL)
        ((PyTypeObject *)s_Fork)->tp_vectorcall = Fork_call;
    if (taken != PyDict_Size(given)) {
        PyErr_SetString(PyExc_TypeError, "setup() got a name that it does not know");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
missing(PyObject *module, PyObject *unused)
{
    PyObject *names = PyList_New(0);
#define MISSES(name)                                                                     \
    if (names != NULL && s_##name == NULL) {                                             \
        PyObject *text = PyUnicode_FromString(#name);                                    \
        if (text == NULL || PyList_Append(names, text) < 0)                              \
            Py_CLEAR(names);                                                             \
        Py_XDECREF(text);                                                                \
    }
    FOREIGN(MISSES)
    return names;
}

static PyObject *
set_op_budget(PyObject *module, PyObject *arg)
{
    long primitives = PyLong_AsLong(arg);
    if (primitives == -1 && PyErr_Occurred())
        return NULL;
    op_budget = (int)primitives;
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"set_op_budget", set_op_budget, METH_O, "Say how many primitives make a step."},
    {"setup", (PyCFunction)(void (*)(void))setup, METH_VARARGS | METH_KEYWORDS,
     "Take over what the Python side defines."},
    {"missing", missing, METH_NOARGS, "Names that setup() was not given yet."},
    {"new_fiber", (PyCFunction)(void (*)(void))new_fiber, METH_FASTCALL | METH_KEYWORDS,
     "root.new_fiber."},
    {"task_of_step", task_of_step, METH_NOARGS, "hooks.task_of_step, without a frame."},
    {NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, .m_name = "fibers._speed", .m_size = -1, .m_methods = module_methods};

PyMODINIT_FUNC
PyInit__speed(void)
{
#define INTERN(name)                                                                     \
    if ((n_##name = PyUnicode_InternFromString(#name)) == NULL)                          \
        return NULL;
    NAMES(INTERN)
    kw_context = PyTuple_Pack(1, n_context);
    if (kw_context == NULL)
        return NULL;
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL)
        return NULL;
    /* object's own: any other one is "not safe" for an effect whose fields come from elsewhere, and
     * neither copy nor pickle could make one. */
    Effect_Type.tp_new = PyBaseObject_Type.tp_new;
    PyTypeObject *types[] = {&Queue_Type, &Fiber_Type, &Inner_Type, &Body_Type,   &Fork_Type,
                             &Join_Type,  &Value_Type, &Await_Type, &Effect_Type, NULL};
    for (int i = 0; types[i] != NULL; i++)
        if (PyModule_AddType(module, types[i]) < 0)
            return NULL;
    if (PyModule_AddIntConstant(module, "OP_BUDGET_PRIMITIVES", OP_BUDGET_PRIMITIVES) < 0 ||
        PyModule_AddIntConstant(module, "SHALLOW_CALLS", SHALLOW_CALLS) < 0 ||
        PyModule_AddIntConstant(module, "ROOM_CALLS", ROOM_CALLS) < 0 ||
        PyModule_AddIntConstant(module, "MORE_ROOM_CALLS", MORE_ROOM_CALLS) < 0)
        return NULL;
    return module;
}
