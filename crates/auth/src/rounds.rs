//! What waits for something scarce, by the source it comes from: what is next, and what gives way.
//!
//! An attacker has many addresses in a few networks more easily than a few in many networks. So the
//! widest networks take turns, the networks within each of them, and the sources within those. What
//! is pushed waits for one turn of each network that waits beside its own, however many sources the
//! others have.
//!
//! If more waits than may, the newest of the most crowded network gives way: within it, of its most
//! crowded network, and so on. So sources of few networks take no place from those of another.

use std::collections::{BTreeMap, HashMap};

use super::networks::{Network, Source};

/// What waits, in turns.
pub(super) struct Rounds<T> {
    len_max: usize,
    /// By source, then by age.
    waiting: BTreeMap<(Source, u64), T>,
    /// The number of each network among those with the same network around them.
    numbers: HashMap<Network, u64>,
    /// The networks by the network around them and their number. The lowest number is next.
    order: BTreeMap<(Option<Network>, u64), Place>,
    last_number: u64,
}

#[derive(Clone, Copy)]
struct Place {
    network: Network,
    /// How much of it waits.
    len: usize,
}

impl<T> Rounds<T> {
    /// So much may wait.
    pub fn new(len_max: usize) -> Self {
        Self {
            len_max,
            waiting: BTreeMap::new(),
            numbers: HashMap::new(),
            order: BTreeMap::new(),
            last_number: 0,
        }
    }

    /// Has `item` of `source` wait. Returns its number, and what gives way for it, which may be
    /// `item` itself.
    pub fn push(&mut self, source: Source, item: T) -> (u64, Option<(Source, T)>) {
        let id = self.next_number();
        self.waiting.insert((source, id), item);
        let mut around = None;
        for network in source.networks() {
            let number = match self.numbers.get(&network) {
                Some(number) => *number,
                None => {
                    let number = self.next_number();
                    self.numbers.insert(network, number);
                    number
                }
            };
            let place = self.order.entry((around, number));
            place.or_insert(Place { network, len: 0 }).len += 1;
            around = Some(network);
        }
        let given_way = match self.waiting.len() > self.len_max {
            true => self.give_way(),
            false => None,
        };
        (id, given_way)
    }

    /// What is next.
    pub fn pop(&mut self) -> Option<(Source, T)> {
        let source = self.find(|places| places.next())?;
        let mut of_source = self.waiting.range((source, 0)..=(source, u64::MAX));
        let (&(_, id), _) = of_source.next()?;
        // Its networks have their next turn after all others.
        let mut around = None;
        for network in source.networks() {
            let last = self.next_number();
            if let Some(number) = self.numbers.get_mut(&network)
                && let Some(place) = self.order.remove(&(around, *number))
            {
                *number = last;
                self.order.insert((around, last), place);
            }
            around = Some(network);
        }
        Some((source, self.remove(source, id)?))
    }

    /// Has something wait no longer.
    pub fn remove(&mut self, source: Source, id: u64) -> Option<T> {
        let item = self.waiting.remove(&(source, id))?;
        let mut around = None;
        for network in source.networks() {
            if let Some(&number) = self.numbers.get(&network)
                && let Some(place) = self.order.get_mut(&(around, number))
            {
                place.len -= 1;
                if place.len == 0 {
                    self.order.remove(&(around, number));
                    self.numbers.remove(&network);
                }
            }
            around = Some(network);
        }
        Some(item)
    }

    /// Of networks that are as crowded, the one whose turn comes last.
    fn give_way(&mut self) -> Option<(Source, T)> {
        let source = self.find(|places| places.max_by_key(|place| place.len))?;
        let mut of_source = self.waiting.range((source, 0)..=(source, u64::MAX));
        let (&(_, id), _) = of_source.next_back()?;
        Some((source, self.remove(source, id)?))
    }

    /// The source that is found if `choose` chooses a network, one within it, and so on.
    fn find(
        &self,
        choose: impl Fn(&mut dyn Iterator<Item = Place>) -> Option<Place>,
    ) -> Option<Source> {
        let mut found = None;
        loop {
            let within = self.order.range((found, 0)..=(found, u64::MAX));
            match choose(&mut within.map(|(_, place)| *place)) {
                Some(place) => found = Some(place.network),
                None => return Some(found?.prefix()),
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: usize = 1000;
    const CLIENT: Source = Source::V4([192, 0, 2, 1]);

    fn of(a: u8, b: u8, c: u8) -> Source {
        Source::V4([10, a, b, c])
    }

    fn waiting(len_max: usize, sources: &[Source]) -> Rounds<()> {
        let mut rounds = Rounds::new(len_max);
        for source in sources {
            rounds.push(*source, ());
        }
        rounds
    }

    fn popped(rounds: &mut Rounds<()>) -> Vec<Source> {
        let popped = std::iter::from_fn(|| rounds.pop()).map(|(source, ())| source);
        let popped = popped.collect();
        assert!(rounds.numbers.is_empty() && rounds.order.is_empty());
        popped
    }

    #[test]
    fn networks_take_turns_and_so_do_the_networks_within_them() {
        let mut rounds = waiting(
            MANY,
            &[
                of(0, 0, 1),
                of(0, 0, 2),
                of(0, 0, 3),
                of(0, 1, 1),
                of(0, 1, 2),
                of(1, 0, 1),
                CLIENT,
            ],
        );
        let expected = [
            of(0, 0, 1),
            of(1, 0, 1),
            CLIENT,
            of(0, 1, 1),
            of(0, 0, 2),
            of(0, 1, 2),
            of(0, 0, 3),
        ];
        assert_eq!(popped(&mut rounds), expected);
    }

    #[test]
    fn a_client_waits_for_one_turn_of_each_other_network_however_often_they_come_back() {
        let guessers: Vec<_> = (0..MANY)
            .map(|it| of((it % 5) as u8, 0, (it / 5) as u8))
            .collect();
        let mut rounds = waiting(MANY + 1, &guessers);
        for _ in 0..3 {
            rounds.pop();
        }
        rounds.push(CLIENT, ());
        let mut before = 0;
        while let Some((source, ())) = rounds.pop()
            && source != CLIENT
        {
            before += 1;
            rounds.push(source, ());
            assert!(before <= 5);
        }
        assert_eq!(before, 5);
    }

    #[test]
    fn sources_of_few_networks_take_no_place_from_others_in_whatever_order_they_come() {
        for networks in [1_usize, 2, 10, 100] {
            let mut rounds = waiting(MANY, &[CLIENT]);
            let share = MANY / (networks + 1);
            // Each network takes what it can get before the next one comes.
            for network in 0..networks {
                for host in 0..2 * MANY {
                    let source = of(network as u8, (host / 256) as u8, (host % 256) as u8);
                    rounds.push(source, ());
                }
            }
            for _ in 1..share {
                let (_, given_way) = rounds.push(CLIENT, ());
                assert!(given_way.is_some_and(|(source, ())| source != CLIENT));
            }
            assert_eq!(rounds.waiting.len(), MANY);
            // No more than its share.
            for _ in 0..MANY {
                rounds.push(CLIENT, ());
            }
            let held = popped(&mut rounds)
                .iter()
                .filter(|it| **it == CLIENT)
                .count();
            assert!((share..=share + 1).contains(&held), "{networks}: {held}");
        }
    }

    #[test]
    fn sources_of_one_part_of_a_network_take_no_place_from_its_other_parts() {
        let guessers: Vec<_> = (0..2 * MANY).map(|it| of(0, 0, (it % 256) as u8)).collect();
        let mut rounds = waiting(MANY, &guessers);
        let (_, given_way) = rounds.push(of(0, 1, 1), ());
        assert!(
            given_way.is_some_and(|(source, ())| source.networks()[1] == of(0, 0, 1).networks()[1])
        );
    }

    #[test]
    fn what_is_given_up_waits_no_longer() {
        let mut rounds = waiting(MANY, &[CLIENT]);
        let (id, _) = rounds.push(Source::Local, ());
        assert_eq!(rounds.remove(Source::Local, id), Some(()));
        assert_eq!(rounds.remove(Source::Local, id), None);
        assert_eq!(popped(&mut rounds), [CLIENT]);
    }
}
