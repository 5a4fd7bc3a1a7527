//! Threads that stay awake together for the length of a step.
//!
//! A decode step is a few hundred short launches. Waking a sleeping thread for each costs as much
//! as a small launch takes, so for the length of a step the threads of a rayon pool wait for
//! blocks in a loop instead. None is ever waited for before it has begun a block: the leader takes
//! every block that nobody else took.

use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Polls before a waiting thread lets others run.
const POLLS_AWAKE: usize = 512;
/// Polls before a waiting thread looks for other work of its pool.
const POLLS_ALONE: usize = 8 * POLLS_AWAKE;

/// What a job's blocks call: the closure, the worker's number, the block.
type Call = unsafe fn(*const (), usize, usize);

#[derive(Clone, Copy)]
struct Job {
    call: Call,
    closure: *const (),
    blocks: usize,
    workers: usize,
}

/// A number on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicUsize);

/// Threads of one rayon pool that share the blocks of a step's launches.
///
/// Each thread takes the blocks of its own share first, the same in every step, so that weights
/// stay in its caches; then what others left.
#[derive(derive_more::Debug)]
#[debug("Team({} threads)", shares.len())]
pub struct Team {
    job: UnsafeCell<Job>,
    /// Counts jobs, so that no thread joins one twice.
    epoch: Padded,
    /// Bit 0: the job may be joined. The rest: twice the number of threads inside, the leader not
    /// counted.
    gate: Padded,
    /// Worker numbers given out in this job.
    joined: Padded,
    /// The next block of each thread's share.
    shares: Box<[Padded]>,
    is_over: AtomicBool,
}

// SAFETY: `job` is written by the leader alone, while the gate is closed and nobody is inside,
// and read by others only inside; entering acquires what opening the gate released.
unsafe impl Sync for Team {}
// SAFETY: between steps `job` is not read, so the team may move with its owner.
unsafe impl Send for Team {}

thread_local! {
    /// The team that this thread leads, outside of its jobs.
    static LED: Cell<*const Team> = const { Cell::new(std::ptr::null()) };
}

/// Restores what the thread led before, also while unwinding.
struct Leading(*const Team);

impl Leading {
    fn set(team: *const Team) -> Self {
        Self(LED.replace(team))
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        LED.set(self.0);
    }
}

/// Closes the gate and waits until everybody has left, also while unwinding.
struct OpenJob<'a>(&'a Team);

impl Drop for OpenJob<'_> {
    fn drop(&mut self) {
        let gate = &self.0.gate.0;
        gate.fetch_and(!1, Ordering::AcqRel);
        let mut polls = 0;
        while gate.load(Ordering::Acquire) != 0 {
            wait(&mut polls);
        }
    }
}

/// Ends the step, also while unwinding.
struct Step<'a>(&'a Team);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

/// Leaves a job, also while unwinding.
struct Inside<'a>(&'a Team);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.gate.0.fetch_sub(2, Ordering::AcqRel);
    }
}

fn wait(polls: &mut usize) {
    *polls += 1;
    if *polls < POLLS_AWAKE {
        spin_loop();
    } else {
        std::thread::yield_now();
    }
}

impl Team {
    /// A team of all threads of a pool of `threads`.
    pub fn new(threads: usize) -> Self {
        unsafe fn nothing(_: *const (), _: usize, _: usize) {}
        let job = Job { call: nothing, closure: std::ptr::null(), blocks: 0, workers: 0 };
        Self {
            job: UnsafeCell::new(job),
            epoch: Padded::default(),
            gate: Padded::default(),
            joined: Padded::default(),
            shares: (0..threads.max(1)).map(|_| Padded::default()).collect(),
            is_over: AtomicBool::new(true),
        }
    }

    /// Runs `step` on this thread while the other threads of the current rayon pool wait for
    /// blocks of what it calls. To be called inside the pool. Does not allocate.
    pub fn lead<R: Send>(&mut self, step: impl FnOnce() -> R + Send) -> R {
        self.is_over = AtomicBool::new(false);
        let others = self.shares.len().min(rayon::current_num_threads()) - 1;
        self.with_others(others, step)
    }

    fn with_others<R: Send>(&self, others: usize, step: impl FnOnce() -> R + Send) -> R {
        if others > 0 {
            return rayon::join(|| self.with_others(others - 1, step), || self.help()).0;
        }
        let _step = Step(self);
        let _leading = Leading::set(self);
        step()
    }

    /// Works on the leader's jobs until the step is over.
    fn help(&self) {
        let mut seen = self.epoch.0.load(Ordering::Acquire).wrapping_sub(1);
        let mut polls = 0;
        while !self.is_over.load(Ordering::Acquire) {
            let epoch = self.epoch.0.load(Ordering::Acquire);
            if epoch != seen {
                seen = epoch;
                if let Some(inside) = self.enter() {
                    let worker = self.joined.0.fetch_add(1, Ordering::Relaxed) + 1;
                    // SAFETY: inside, the job is not written and its closure is alive.
                    unsafe { self.work(worker) };
                    drop(inside);
                    polls = 0;
                    continue;
                }
            }
            if polls > POLLS_ALONE {
                // An op may have spread work over the pool by itself.
                rayon::yield_now();
            }
            wait(&mut polls);
        }
    }

    fn enter(&self) -> Option<Inside<'_>> {
        let gate = &self.gate.0;
        let open = |now: usize| (now & 1 == 1).then_some(now + 2);
        gate.fetch_update(Ordering::AcqRel, Ordering::Acquire, open).ok().map(|_| Inside(self))
    }

    /// Calls `work(worker, block)` once for each block, on this thread and on those that come.
    fn run<F: Fn(usize, usize) + Sync>(&self, workers: usize, blocks: usize, work: &F) {
        unsafe fn call<F: Fn(usize, usize)>(closure: *const (), worker: usize, block: usize) {
            // SAFETY: `closure` is the `work` of the job, which outlives it.
            unsafe { (*closure.cast::<F>())(worker, block) }
        }
        // Work inside a block stays on its thread.
        let _leading = Leading::set(std::ptr::null());
        for (thread, share) in self.shares.iter().enumerate() {
            share.0.store(self.first_block(thread, blocks), Ordering::Relaxed);
        }
        self.joined.0.store(0, Ordering::Relaxed);
        let job =
            Job { call: call::<F>, closure: std::ptr::from_ref(work).cast(), blocks, workers };
        // SAFETY: the gate is closed and nobody is inside: the last job waited for that.
        unsafe { *self.job.get() = job };
        self.gate.0.store(1, Ordering::Release);
        self.epoch.0.fetch_add(1, Ordering::Release);
        let _open = OpenJob(self);
        // SAFETY: the leader itself wrote the job, and does not write it before this returns.
        unsafe { self.work(0) };
    }

    fn first_block(&self, thread: usize, blocks: usize) -> usize {
        // Below 2^64 for any number of blocks whose outputs fit in memory.
        (thread as u128 * blocks as u128 / self.shares.len() as u128) as usize
    }

    /// Takes blocks until none are left: of this thread's share, then of the others'.
    ///
    /// # Safety
    /// Nobody writes the job meanwhile, and its closure is alive.
    unsafe fn work(&self, worker: usize) {
        // SAFETY: the caller's promise.
        let Job { call, closure, blocks, workers } = unsafe { *self.job.get() };
        if worker >= workers {
            return;
        }
        let threads = self.shares.len();
        let own = rayon::current_thread_index().unwrap_or(0) % threads;
        for thread in (own..threads).chain(0..own) {
            let end = self.first_block(thread + 1, blocks);
            let next = &self.shares[thread].0;
            while next.load(Ordering::Relaxed) < end {
                let block = next.fetch_add(1, Ordering::Relaxed);
                if block >= end {
                    break;
                }
                // SAFETY: the caller's promise.
                unsafe { call(closure, worker, block) };
            }
        }
    }
}

/// Gives the blocks to the team that this thread leads; whether it leads one.
pub(super) fn run_led(
    workers: usize,
    blocks: usize,
    work: &(impl Fn(usize, usize) + Sync),
) -> bool {
    let team = LED.get();
    // SAFETY: a thread leads a team only during `lead`, which borrows it.
    let Some(team) = (unsafe { team.as_ref() }) else { return false };
    team.run(workers, blocks, work);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::parallel::for_each_block;

    fn pool(threads: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
    }

    #[test]
    fn every_block_runs_once_with_a_worker_of_its_own() {
        for threads in [1, 2, 4, 7] {
            let (pool, mut team) = (pool(threads), Team::new(threads));
            for step in 0..200 {
                let runs: Vec<Padded> = (0..97).map(|_| Padded::default()).collect();
                let busy: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
                let launches = 1 + step % 5;
                pool.install(|| {
                    team.lead(|| {
                        for launch in 0..launches {
                            let workers = 1 + (step + launch) % threads;
                            for_each_block(workers, runs.len(), |worker, block| {
                                assert!(worker < workers);
                                assert!(!busy[worker].swap(true, Ordering::AcqRel));
                                runs[block].0.fetch_add(1, Ordering::Relaxed);
                                busy[worker].store(false, Ordering::Release);
                            });
                            let done = |run: &Padded| run.0.load(Ordering::Relaxed) == launch + 1;
                            assert!(runs.iter().all(done), "blocks left behind");
                        }
                    });
                });
            }
        }
    }

    #[test]
    fn work_inside_a_block_stays_on_its_thread_and_rayon_still_gets_threads() {
        let (pool, mut team) = (pool(4), Team::new(4));
        let total = AtomicUsize::new(0);
        pool.install(|| {
            team.lead(|| {
                for_each_block(4, 8, |_, _| {
                    for_each_block(4, 8, |_, _| {
                        total.fetch_add(1, Ordering::Relaxed);
                    });
                });
                let (a, b) = rayon::join(|| 1, || 2);
                total.fetch_add(a + b, Ordering::Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 64 + 3);
    }

    #[test]
    fn a_panic_of_the_step_or_of_a_block_ends_the_step_and_the_team_goes_on() {
        let (pool, mut team) = (pool(3), Team::new(3));
        for block_panics in [false, true] {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.install(|| {
                    team.lead(|| {
                        for_each_block(3, 30, |_, block| assert!(!block_panics || block != 17));
                        assert!(block_panics, "a planted fault");
                    });
                });
            }));
            assert!(ended.is_err());
            let count = AtomicUsize::new(0);
            pool.install(|| {
                team.lead(|| {
                    for_each_block(3, 5, |_, _| {
                        count.fetch_add(1, Ordering::Relaxed);
                    });
                });
            });
            assert_eq!(count.into_inner(), 5);
        }
    }
}
