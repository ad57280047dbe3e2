//! The schemas match the types, in the form that Kubernetes understands.

use serde_json::json;

use super::*;
use crate::Object;

#[test]
fn the_schema_has_exactly_the_fields_of_the_design() {
    let rows = [
        (Kind::ESite, "cache mappedSubnets subnets"),
        (
            Kind::EGateway,
            "drain eSiteName endpoint ip prefer priority publicKey relay subnets virtualPresenceIPcidr",
        ),
        (
            Kind::EService,
            "backendTLS domainName eSiteName endpoints healthCheck ip port protocol proxyProtocol",
        ),
        (Kind::EServer, "ePolicys eServerName eSiteName ip ports"),
        (Kind::EPolicy, "allowedServers allowedSites http limits ports"),
        (Kind::ServiceExpose, "dnsName ePolicys eServiceName eSites mode"),
        (Kind::VirtualPresence, "eServiceName eSiteName virtualIp"),
        (Kind::ECommunity, "ePolicys mapFrom members"),
    ];
    for (kind, expected) in rows {
        let properties = of(kind)["properties"].as_object().unwrap();
        let own = properties.keys().filter(|name| *name != "metadata" && *name != "status");
        assert_eq!(own.cloned().collect::<Vec<_>>().join(" "), expected, "{kind}");
    }
    let nested = |kind, path: &str| {
        let fields = of(kind).pointer(path).unwrap().as_object().unwrap();
        fields.keys().cloned().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(nested(Kind::EService, "/properties/endpoints/items/properties"), "ip port");
    assert_eq!(nested(Kind::EService, "/properties/healthCheck/properties"), "intervalSeconds path type");
    assert_eq!(nested(Kind::EService, "/properties/backendTLS/properties"), "caBundle mode serverName");
    assert_eq!(nested(Kind::EPolicy, "/properties/http/items/properties"), "methods paths");
    assert_eq!(
        nested(Kind::EPolicy, "/properties/limits/properties"),
        "bytesPerSecondIn bytesPerSecondOut connections connectionsPerSecond requestsPerSecond"
    );
}

#[test]
fn every_schema_is_structural_and_every_field_is_described() {
    for kind in Kind::ALL {
        walk(of(kind), kind.name());
    }
}

#[track_caller]
fn walk(schema: &Value, path: &str) {
    let fields = schema.as_object().unwrap_or_else(|| panic!("{path}"));
    for key in fields.keys() {
        let known = [
            "additionalProperties",
            "default",
            "description",
            "enum",
            "format",
            "items",
            "maxItems",
            "maxLength",
            "maximum",
            "minimum",
            "properties",
            "required",
            "type",
        ];
        assert!(known.contains(&key.as_str()) || key.starts_with("x-kubernetes-"), "{path}: {key}");
    }
    assert!(fields["type"].is_string(), "{path}");
    if fields["type"] == "array" {
        assert!(fields.contains_key("x-kubernetes-list-type"), "{path}");
        walk(&fields["items"], &format!("{path}[]"));
    }
    if let Some(inner) = fields.get("additionalProperties").filter(|inner| inner.is_object()) {
        walk(inner, &format!("{path}{{}}"));
    }
    for (name, property) in fields.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let path = format!("{path}.{name}");
        let description =
            property["description"].as_str().unwrap_or_else(|| panic!("{path} has no description"));
        assert!(!description.contains('\n'), "{path}: {description}");
        walk(property, &path);
    }
}

#[test]
fn lists_are_atomic_except_conditions_and_sets_of_names() {
    let mut found = Vec::new();
    for kind in Kind::ALL {
        for (name, property) in of(kind)["properties"].as_object().unwrap() {
            if let Some(list_type) = property.get("x-kubernetes-list-type") {
                found.push(format!("{kind}.{name} {}", list_type.as_str().unwrap()));
            }
        }
    }
    assert_eq!(
        found,
        [
            "ESite.cache atomic",
            "ESite.mappedSubnets atomic",
            "ESite.subnets atomic",
            "EGateway.subnets atomic",
            "EService.endpoints atomic",
            "EServer.ePolicys set",
            "EServer.ports atomic",
            "EPolicy.allowedServers set",
            "EPolicy.allowedSites set",
            "EPolicy.http atomic",
            "EPolicy.ports atomic",
            "ServiceExpose.ePolicys set",
            "ServiceExpose.eSites set",
            "ECommunity.ePolicys set",
            "ECommunity.members set",
        ]
    );
    let conditions = of(Kind::ESite).pointer("/properties/status/properties/conditions").unwrap();
    assert_eq!(conditions["x-kubernetes-list-type"], "map");
    assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]));
}

#[test]
fn a_default_in_the_schema_is_the_one_that_is_filled_in() {
    let filled = |kind, value| {
        let mut object = Object::decode(kind, value).unwrap().object;
        object.default_fields();
        serde_json::to_value(&object).unwrap()
    };
    let gateway = filled(Kind::EGateway, json!({}));
    let service = filled(Kind::EService, json!({"healthCheck": {}, "backendTLS": {}}));
    let rows = [
        (Kind::EGateway, &gateway, "/virtualPresenceIPcidr", "/properties/virtualPresenceIPcidr"),
        (Kind::EService, &service, "/protocol", "/properties/protocol"),
        (Kind::EService, &service, "/healthCheck/type", "/properties/healthCheck/properties/type"),
        (
            Kind::EService,
            &service,
            "/healthCheck/intervalSeconds",
            "/properties/healthCheck/properties/intervalSeconds",
        ),
        (Kind::EService, &service, "/backendTLS/mode", "/properties/backendTLS/properties/mode"),
    ];
    for (kind, object, field, schema) in rows {
        let default = &of(kind).pointer(schema).unwrap()["default"];
        assert!(!default.is_null(), "{field}");
        assert_eq!(object.pointer(field), Some(default), "{field}");
    }
}

#[test]
fn every_reference_leads_to_a_definition() {
    let definitions = definitions();
    let text = serde_json::to_string(&definitions).unwrap();
    for reference in text.split("#/definitions/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(definitions.contains_key(name), "{name}");
    }
    let names: Vec<&str> = definitions.keys().map(String::as_str).collect();
    assert_eq!(
        names.join(" "),
        "BackendTls CachedResource Condition ECommunity EGateway EPolicy EServer EService ESite Endpoint Event EventSeries EventSource \
         HealthCheck HttpRule Limits ListMeta ManagedFieldsEntry MappedSubnet Namespace NamespaceSpec NamespaceStatus ObjectMeta ObjectReference \
         ObjectStatus OwnerReference Service ServiceExpose Status StatusCause StatusDetails VirtualPresence"
    );
}
