// An informer of the official JavaScript client: lists, watches, and starts again when its watch breaks, as the client's own
// examples do it. Takes the folder of the client's node_modules and a kubeconfig. Prints one line of JSON per change of its cache.
import { createRequire } from 'node:module';
import { join } from 'node:path';

const [, , folder, kubeconfig] = process.argv;
const require = createRequire(join(folder, 'package.json'));
const k8s = await import(require.resolve('@kubernetes/client-node'));

const config = new k8s.KubeConfig();
config.loadFromFile(kubeconfig);
const objects = config.makeApiClient(k8s.CustomObjectsApi);
const core = config.makeApiClient(k8s.CoreV1Api);
// Standard error is what the test keeps.
const print = (line) => console.error(JSON.stringify(line));

const namespaces = await core.listNamespace();
print({ namespaces: namespaces.items.map((namespace) => namespace.metadata.name) });

const [group, version, plural] = ['causeway.io', 'v1', 'esites'];
const list = () => objects.listClusterCustomObject({ group, version, plural });
const informer = k8s.makeInformer(config, `/apis/${group}/${version}/${plural}`, list);
for (const change of ['add', 'update', 'delete']) {
    informer.on(change, (site) => {
        const cached = informer.list().map((other) => other.metadata.name).sort();
        print({ change, name: site.metadata.name, subnets: site.subnets ?? [], cached });
    });
}
informer.on('error', (error) => {
    print({ error: String(error?.code ?? error) });
    setTimeout(() => informer.start().catch(retry), 200);
});
function retry(error) {
    print({ error: String(error?.code ?? error) });
    setTimeout(() => informer.start().catch(retry), 200);
}
await informer.start().catch(retry);
print({ started: true });

// Events, as a client of the newer group sees them.
const events = config.makeApiClient(k8s.EventsV1Api);
const told = await events.listEventForAllNamespaces();
print({ events: told.items.every((event) => event.regarding?.kind !== undefined) });
