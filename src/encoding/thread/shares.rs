//! Who brings how many items to a round.

use piecewise_runtime::engine::Client;
use std::collections::HashMap;

/// How many items of each call, which has so many and is of this client, take part in a round of `most`
/// items: a client has as many as another, or as its weight says, however many calls it has there, and
/// each of its calls as many as another.
pub(super) fn shares(calls: &[(Client, usize)], most: usize) -> Vec<usize> {
    let mut places = HashMap::new();
    let mut clients: Vec<(Client, Vec<usize>)> = Vec::new();
    for (call, (client, _)) in calls.iter().enumerate() {
        let place = *places.entry(client.id).or_insert(clients.len());
        if place == clients.len() {
            clients.push((*client, Vec::new()));
        }
        clients[place].1.push(call);
    }
    let items = |of: &[usize]| of.iter().map(|&call| calls[call].1).sum();
    let wanted = clients.iter().map(|(client, of)| (client.weight.get(), items(of)));
    let of_clients = split(&Vec::from_iter(wanted), most);
    let mut taken = vec![0; calls.len()];
    for ((_, of), share) in clients.iter().zip(of_clients) {
        let wanted = Vec::from_iter(of.iter().map(|&call| (1, calls[call].1)));
        for (&call, share) in of.iter().zip(split(&wanted, share)) {
            taken[call] = share;
        }
    }
    taken
}

/// Splits `most` among those who want so many, by their weights; nobody has more than it wants, and the
/// first have what does not come out even.
fn split(wanted: &[(u32, usize)], most: usize) -> Vec<usize> {
    let mut taken = vec![0; wanted.len()];
    let mut left = most;
    loop {
        let open = Vec::from_iter((0..wanted.len()).filter(|&i| taken[i] < wanted[i].1));
        if left == 0 || open.is_empty() {
            return taken;
        }
        let weights: u64 = open.iter().map(|&i| u64::from(wanted[i].0)).sum();
        let all = left as u64;
        for i in open.into_iter().take(left) {
            let share = (all * u64::from(wanted[i].0) / weights).max(1) as usize;
            let more = share.min(wanted[i].1 - taken[i]).min(left);
            taken[i] += more;
            left -= more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use piecewise_testing::{Rng, soak};
    use std::num::NonZeroU32;

    fn of_one(items: &[usize], most: usize) -> Vec<usize> {
        shares(&Vec::from_iter(items.iter().map(|&items| (Client::default(), items))), most)
    }

    #[test]
    fn every_call_that_waits_takes_part_in_a_round() {
        assert_eq!(of_one(&[2048, 1, 3], 128), [124, 1, 3]);
        assert_eq!(of_one(&[2048], 128), [128]);
        assert_eq!(of_one(&[1, 1, 1], 2), [1, 1, 0]);
        assert_eq!(of_one(&[0, 5], 3), [0, 3]);
        assert_eq!(of_one(&[], 3), [0; 0]);
        let mut rng = Rng::new(12);
        for _ in 0..soak(300) {
            let items = Vec::from_iter((0..rng.below(12)).map(|_| rng.below(40)));
            let most = 1 + rng.below(100);
            let taken = of_one(&items, most);
            assert_eq!(taken.iter().sum::<usize>(), most.min(items.iter().sum()), "{items:?}");
            assert!(taken.iter().zip(&items).all(|(taken, items)| taken <= items));
            // Who has less than another has all of it, up to what does not come out even.
            for (&a, &all) in taken.iter().zip(&items) {
                assert!(a == all || taken.iter().all(|&b| b <= a + 1), "{items:?}: {taken:?}");
            }
        }
    }

    #[test]
    fn a_client_has_no_more_of_a_round_for_having_more_calls() {
        let client = |id, weight| Client { id, weight: NonZeroU32::new(weight).unwrap() };
        let mut calls = vec![(client(1, 1), 10); 50];
        calls.push((client(2, 1), 40));
        calls.push((client(3, 2), 400));
        let taken = shares(&calls, 80);
        assert_eq!((taken[..50].iter().sum::<usize>(), &taken[50..]), (20, &[20, 40][..]));
        // What one does not want the others have.
        calls[50].1 = 1;
        let taken = shares(&calls, 80);
        assert_eq!((taken[50], taken.iter().sum::<usize>()), (1, 80));
        assert!(taken[..50].iter().sum::<usize>() >= 20 && taken[51] >= 40, "{taken:?}");
    }
}
