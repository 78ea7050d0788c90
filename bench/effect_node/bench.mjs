// The same work as rows of the table, by Effect on Node. Prints one line of JSON: the versions, and
// for each key of a row the CPU nanoseconds of one operation, a figure a round.
//
// CPU time is that of the process: Node tells no other before 23.9, and what V8 does in threads of
// its own (compiling, collecting) is part of the price.

import { readFileSync } from "node:fs"
import { Effect, Exit, Fiber, Scope } from "effect"

const ROUNDS = 11
const WARM_UPS = 4
const PART = Number(process.argv[2] ?? 1)
const VALUE = 1

const cpuNs = () => {
  const { user, system } = process.cpuUsage()
  return (user + system) * 1000
}

const check = (held) => {
  if (!held) throw new Error("the work was not done: its time means nothing")
}

// A body that never suspends, and one that gives the others a turn.
const nop = Effect.fnUntraced(function* () {
  return VALUE
})
const hop = Effect.fnUntraced(function* () {
  yield* Effect.yieldNow
  return VALUE
})
const sleepingBody = Effect.fnUntraced(function* () {
  yield* Effect.sleep("1 hour")
})

/** Runs `work(n)` in a fiber; it gives the nanoseconds of all n. */
const inFiber = (work) => (n) => Effect.runPromise(work(n))

const timed = (n, before, work, after) =>
  Effect.gen(function* () {
    const given = yield* before(n)
    const started = cpuNs()
    const result = yield* work(given, n)
    const took = cpuNs() - started
    check(after(given, result, n))
    return took
  })

const nothing = () => Effect.void

const oneByOne = (body, options) =>
  inFiber((n) =>
    timed(
      n,
      nothing,
      function (_given, times) {
        return Effect.gen(function* () {
          let total = 0
          for (let i = 0; i < times; i++) {
            total += yield* Fiber.join(yield* Effect.forkChild(body(), options))
          }
          return total
        })
      },
      (_given, total, times) => total === times
    )
  )

const edge = (n) => {
  let total = 0
  const started = cpuNs()
  for (let i = 0; i < n; i++) {
    const exit = Effect.runFork(nop()).pollUnsafe()
    total += exit.value
  }
  const took = cpuNs() - started
  check(total === n)
  return took
}

const joined = (fibers) =>
  Effect.gen(function* () {
    let total = 0
    for (const fiber of fibers) total += yield* Fiber.join(fiber)
    return total
  })

const batchDetached = inFiber((n) =>
  timed(
    n,
    nothing,
    (_given, times) =>
      Effect.gen(function* () {
        const fibers = []
        for (let i = 0; i < times; i++) fibers.push(yield* Effect.forkDetach(nop()))
        return yield* joined(fibers)
      }),
    (_given, total, times) => total === times
  )
)

const batchScope = inFiber((n) =>
  timed(
    n,
    nothing,
    (_given, times) =>
      Effect.gen(function* () {
        const scope = yield* Scope.make()
        const fibers = []
        for (let i = 0; i < times; i++) fibers.push(yield* Effect.forkIn(nop(), scope))
        const total = yield* joined(fibers)
        yield* Scope.close(scope, Exit.void)
        return total
      }),
    (_given, total, times) => total === times
  )
)

const asleep = (sleeper) => (n) =>
  Effect.gen(function* () {
    const fibers = []
    for (let i = 0; i < n; i++) {
      fibers.push(yield* Effect.forkDetach(sleeper(), { startImmediately: true }))
    }
    return fibers
  })

const allInterrupted = (fibers) =>
  fibers.every((fiber) => {
    const exit = fiber.pollUnsafe()
    return exit !== undefined && Exit.hasInterrupts(exit)
  })

const interruptAll = (sleeper) =>
  inFiber((n) => timed(n, asleep(sleeper), (fibers) => Fiber.interruptAll(fibers), allInterrupted))

const close = (sleeper, strategy) =>
  inFiber((n) =>
    timed(
      n,
      (times) =>
        Effect.gen(function* () {
          const scope = yield* Scope.make(strategy)
          const fibers = []
          for (let i = 0; i < times; i++) {
            fibers.push(yield* Effect.forkIn(sleeper(), scope, { startImmediately: true }))
          }
          return { scope, fibers }
        }),
      ({ scope }) => Scope.close(scope, Exit.void),
      ({ fibers }) => allInterrupted(fibers)
    )
  )

const steps = inFiber((n) =>
  timed(
    n,
    nothing,
    (_given, times) =>
      Effect.gen(function* () {
        for (let i = 0; i < times; i++) yield* Effect.yieldNow
      }),
    () => true
  )
)

const awaited = (eff) =>
  inFiber((n) =>
    timed(
      n,
      nothing,
      (_given, times) =>
        Effect.gen(function* () {
          let total = 0
          for (let i = 0; i < times; i++) total += yield* eff()
          return total
        }),
      (_given, total, times) => total === times
    )
  )

const sleepEffect = () => Effect.sleep("1 hour")

/** By the key of the row with the same work. */
const ROWS = {
  "edge-run-fork": [2_000, edge],
  "join-immediate": [2_000, oneByOne(nop, { startImmediately: true })],
  "join-deferred": [2_000, oneByOne(nop)],
  "hop-immediate": [2_000, oneByOne(hop, { startImmediately: true })],
  "hop-deferred": [2_000, oneByOne(hop)],
  "batch-detached": [20_000, batchDetached],
  "batch-scope": [20_000, batchScope],
  "interrupt-bodies-clock": [10_000, interruptAll(sleepingBody)],
  "interrupt-effects": [10_000, interruptAll(sleepEffect)],
  "close-effects": [10_000, close(sleepEffect, "parallel")],
  "close-effects-sequential": [10_000, close(sleepEffect, "sequential")],
  "step-sleep": [4_000, steps],
  "await-body": [2_000, awaited(nop)],
  "await-value": [2_000, awaited(() => Effect.succeed(VALUE))]
}

const figures = {}
for (const [key, [size, work]] of Object.entries(ROWS)) {
  const n = Math.max(1, Math.floor(size / PART))
  figures[key] = []
  for (let round = 0; round < WARM_UPS + ROUNDS; round++) {
    const took = await work(n)
    if (round >= WARM_UPS) figures[key].push(took / n)
  }
}

const manifest = new URL("./node_modules/effect/package.json", import.meta.url)
const effect = JSON.parse(readFileSync(manifest, "utf8")).version
console.log(JSON.stringify({ effect, node: process.versions.node, ns: figures }))
