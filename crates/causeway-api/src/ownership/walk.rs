//! Walks over objects: the fields of a value, the changes between two, merging two, and removing fields.
//!
//! All four see an object in the same way: maps by field, lists by `shape`, anything else, and anything
//! deeper than a field set can name, as one value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::element::Element;
use super::field_set::{DEPTH_MAX, FieldSet, FieldSetNode};
use super::shape::{ListType, Shape};

/// The fields that `object` names: its leaves, the items of its merged lists, and its empty maps.
pub fn fields_of(object: &Value) -> FieldSet {
    node_of(object, Shape::OBJECT, 0).children
}

/// The changes of fields between two objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldChange {
    pub added: FieldSet,
    pub modified: FieldSet,
    pub removed: FieldSet,
}

impl FieldChange {
    /// Returns the fields that have a new value.
    pub fn written(&self) -> FieldSet {
        self.added.union(&self.modified)
    }

    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }
}

/// Compares two objects. A map or a merged list that appears counts as added together with what it holds;
/// the order of a merged list is no change.
pub fn compare(old: &Value, new: &Value) -> FieldChange {
    let mut comparison = Comparison::default();
    comparison.visit(Some(old), Some(new), Shape::OBJECT);
    comparison.change
}

/// `config` laid over `live`: maps and merged lists are united, everything else is replaced. Items keep
/// the order of `live`; new ones follow in the order of `config`.
pub fn merge(live: &mut Value, config: &Value) {
    merge_at(live, config, Shape::OBJECT, 0);
}

/// Removes every field and item that is a member of `fields`, with all it holds.
pub fn remove(object: &mut Value, fields: &FieldSet) {
    remove_at(object, fields, Shape::OBJECT);
}

/// Returns the field with a list in which two items have the same key, or an item has no usable key. `apply`
/// must not merge such a list.
pub fn ambiguous_list(object: &Value) -> Option<(String, Element)> {
    let fields = object.as_object()?;
    let nested = fields.iter().flat_map(|(name, value)| {
        let shape = Shape::OBJECT.field(name);
        let below = value.as_object().into_iter().flatten();
        let below = below.map(move |(inner, value)| (format!(".{name}.{inner}"), value, shape.field(inner)));
        std::iter::once((format!(".{name}"), value, shape)).chain(below)
    });
    for (path, value, shape) in nested {
        let (Some(items), false) = (value.as_array(), shape.list == ListType::Atomic) else { continue };
        let mut seen = BTreeSet::new();
        for item in items {
            let element = element_of(item, shape.list);
            let usable = match shape.list {
                ListType::Map(keys) => keys.iter().all(|key| item.get(*key).is_some_and(Value::is_string)),
                _ => item.is_string(),
            };
            if !usable || !seen.insert(element.clone()) {
                return Some((path, element));
            }
        }
    }
    None
}

/// The interpretation of one value by a walk.
enum View<'a> {
    Map(&'a Map<String, Value>),
    List(&'a [Value]),
    Leaf(&'a Value),
}

fn view(value: &Value, shape: Shape, depth: usize) -> View<'_> {
    match value {
        Value::Object(map) if depth < DEPTH_MAX => View::Map(map),
        Value::Array(items) if shape.list != ListType::Atomic && depth < DEPTH_MAX => View::List(items),
        leaf => View::Leaf(leaf),
    }
}

fn element_of(item: &Value, list: ListType) -> Element {
    match list {
        ListType::Map(keys) => Element::key_of(item, keys),
        ListType::Set | ListType::Atomic => Element::value_of(item),
    }
}

fn node_of(value: &Value, shape: Shape, depth: usize) -> FieldSetNode {
    let mut children = FieldSet::default();
    match view(value, shape, depth) {
        View::Map(map) => {
            for (name, value) in map {
                children.put(Element::field(name), node_of(value, shape.field(name), depth + 1));
            }
        }
        View::List(items) => {
            for item in items {
                let below = node_of(item, shape.item(), depth + 1).children;
                children.put(element_of(item, shape.list), FieldSetNode { member: true, children: below });
            }
        }
        View::Leaf(_) => {}
    }
    FieldSetNode { member: children.is_empty(), children }
}

#[derive(Default)]
struct Comparison {
    path: Vec<Element>,
    change: FieldChange,
}

impl Comparison {
    fn visit(&mut self, old: Option<&Value>, new: Option<&Value>, shape: Shape) {
        let depth = self.path.len();
        match (old, new) {
            (None, None) => {}
            (None, Some(new)) => {
                self.change.added.insert(&self.path);
                self.children(None, Some(view(new, shape, depth)), shape);
            }
            (Some(old), None) => {
                self.change.removed.insert(&self.path);
                self.children(Some(view(old, shape, depth)), None, shape);
            }
            (Some(old), Some(new)) => match (view(old, shape, depth), view(new, shape, depth)) {
                (View::Leaf(old), View::Leaf(new)) if old == new => {}
                (old @ View::Map(_), new @ View::Map(_)) | (old @ View::List(_), new @ View::List(_)) => {
                    self.children(Some(old), Some(new), shape);
                }
                (old, new) => {
                    self.change.modified.insert(&self.path);
                    self.children(Some(old), None, shape);
                    self.children(None, Some(new), shape);
                }
            },
        }
    }

    fn children(&mut self, old: Option<View<'_>>, new: Option<View<'_>>, shape: Shape) {
        let mut pairs: BTreeMap<Element, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for (element, value) in old.iter().flat_map(|view| view.children(shape)) {
            pairs.entry(element).or_default().0.push(value);
        }
        for (element, value) in new.iter().flat_map(|view| view.children(shape)) {
            pairs.entry(element).or_default().1.push(value);
        }
        for (element, (old, new)) in pairs {
            let below = match &element {
                Element::Field(name) => shape.field(name),
                _ => shape.item(),
            };
            self.path.push(element);
            if old.len() > 1 || new.len() > 1 {
                self.repeated(&old, &new);
            } else {
                self.visit(old.first().copied(), new.first().copied(), below);
            }
            self.path.pop();
        }
    }

    /// Items that share one key, as a client may once have stored them: together they are one value.
    fn repeated(&mut self, old: &[&Value], new: &[&Value]) {
        let set = match (old, new) {
            ([], _) => &mut self.change.added,
            (_, []) => &mut self.change.removed,
            _ if old == new => return,
            _ => &mut self.change.modified,
        };
        set.insert(&self.path);
    }
}

impl<'a> View<'a> {
    fn children(&self, shape: Shape) -> Vec<(Element, &'a Value)> {
        match self {
            View::Map(map) => map.iter().map(|(name, value)| (Element::field(name), value)).collect(),
            View::List(items) => items.iter().map(|item| (element_of(item, shape.list), item)).collect(),
            View::Leaf(_) => Vec::new(),
        }
    }
}

fn merge_at(live: &mut Value, config: &Value, shape: Shape, depth: usize) {
    match (live, config) {
        (Value::Object(live), Value::Object(config)) if depth < DEPTH_MAX => {
            for (name, value) in config {
                match live.get_mut(name) {
                    Some(below) => merge_at(below, value, shape.field(name), depth + 1),
                    None => drop(live.insert(name.clone(), value.clone())),
                }
            }
        }
        (Value::Array(live), Value::Array(config)) if shape.list != ListType::Atomic && depth < DEPTH_MAX => {
            merge_lists(live, config, shape, depth);
        }
        (live, config) => *live = config.clone(),
    }
}

fn merge_lists(live: &mut Vec<Value>, config: &[Value], shape: Shape, depth: usize) {
    let mut places: BTreeMap<Element, usize> = BTreeMap::new();
    for (place, item) in live.iter().enumerate() {
        places.entry(element_of(item, shape.list)).or_insert(place);
    }
    let mut merged_places = BTreeSet::new();
    for item in config {
        match places.get(&element_of(item, shape.list)) {
            Some(place) => {
                merge_at(&mut live[*place], item, shape.item(), depth + 1);
                merged_places.insert(*place);
            }
            None => live.push(item.clone()),
        }
    }
    // Among items that shared a key, the merged one replaces all.
    let mut place = 0..;
    live.retain(|item| {
        let place = place.next().unwrap_or_default();
        places
            .get(&element_of(item, shape.list))
            .is_none_or(|first| *first == place || !merged_places.contains(first))
    });
}

fn remove_at(object: &mut Value, fields: &FieldSet, shape: Shape) {
    match object {
        Value::Object(map) => map.retain(|name, value| match fields.node(&Element::field(name)) {
            Some(node) if node.member => false,
            Some(node) => {
                remove_at(value, &node.children, shape.field(name));
                true
            }
            None => true,
        }),
        Value::Array(items) if shape.list != ListType::Atomic => {
            items.retain_mut(|item| match fields.node(&element_of(item, shape.list)) {
                Some(node) if node.member => false,
                Some(node) => {
                    remove_at(item, &node.children, shape.item());
                    true
                }
                None => true,
            });
        }
        _ => {}
    }
}
